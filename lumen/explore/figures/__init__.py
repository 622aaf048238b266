"""Still pictures in the house style, drawn with plotly."""
