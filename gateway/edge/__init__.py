"""From the socket to a handler: HTTP, limits of heads and bodies, proxies, host names, the API's description."""
