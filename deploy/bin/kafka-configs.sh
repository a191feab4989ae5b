#!/bin/sh
exec barnabas configs "$@"
