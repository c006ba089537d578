"""Color maps, drawing, plots and html."""
