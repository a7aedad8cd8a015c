"""Where models run: cores, engines, cluster and peers."""
