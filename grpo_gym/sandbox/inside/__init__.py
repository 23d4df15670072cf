"""What runs on the other side: standard library only, started without site-packages."""
