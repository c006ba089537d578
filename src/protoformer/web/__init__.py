"""The web page: one file per tab. gradio is imported only inside functions."""
