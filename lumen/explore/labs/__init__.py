"""Widgets with a kernel behind them; in the built book each shows one recorded run."""
