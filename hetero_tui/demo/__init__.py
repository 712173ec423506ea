"""The demo's machines: real SSH servers on loopback, and a guardian that cleans up after them however they end."""
