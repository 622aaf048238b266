"""Pictures that move without a kernel: Python hands the numbers over, JavaScript of `static/` draws them."""
