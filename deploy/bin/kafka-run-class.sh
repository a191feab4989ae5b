#!/bin/sh
# The classes of Kafka's tools that scripts call by their names.
case "$1" in
  kafka.tools.GetOffsetShell | org.apache.kafka.tools.GetOffsetShell) command=offsets ;;
  kafka.admin.ConfigCommand) command=configs ;;
  org.apache.kafka.tools.TopicCommand | kafka.admin.TopicCommand) command=topics ;;
  *)
    echo "kafka-run-class.sh: $1 is not among the tools here" >&2
    exit 1
    ;;
esac
shift
exec barnabas "$command" "$@"
