"""A private broker of an edge or the coordinator: mosquitto, or amqtt behind limits of ours."""
