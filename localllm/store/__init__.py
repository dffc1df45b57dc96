"""Model files on this machine: names, catalogue, downloads and the folder that holds them."""
