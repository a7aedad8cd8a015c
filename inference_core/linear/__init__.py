"""Linear schemes behind one seam: how a weight matrix is packed and applied."""
