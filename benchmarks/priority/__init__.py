"""Priority queues beside heapq, plain Redis, arq and saq."""
