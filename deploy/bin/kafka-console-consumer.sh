#!/bin/sh
exec barnabas consume "$@"
