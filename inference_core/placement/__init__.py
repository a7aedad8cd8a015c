"""Plans which devices a model runs on and how it is divided over them, with the reasons. No torch."""
