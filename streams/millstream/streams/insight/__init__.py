"""Why a stream is where it is: reports of queues and subscriptions, and the verdict over them."""
