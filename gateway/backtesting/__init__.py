"""What routing would have done with requests of before."""
