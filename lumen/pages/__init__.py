"""What the chapters' pages show: figures and sentences as functions of data. Imports no torch, measures nothing."""
