"""Priority queues compared with heapq, plain Redis, arq and saq."""
