"""The web page: a module a tab, listed in `tabs`; gradio is imported only inside functions."""
