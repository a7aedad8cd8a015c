"""How ranks are arranged and how a model is divided over them. No torch."""
