"""A private broker of an edge or the coordinator: mosquitto, or one of ours."""
