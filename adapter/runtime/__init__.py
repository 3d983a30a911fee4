"""The four roles of a replica and what they say to each other."""
