// A kfake cluster of one broker at the port that is given, for compat_tests/bench/doubles.py.
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.AllowAutoTopicCreation(),
		kfake.DefaultNumPartitions(1))
	if err != nil {
		panic(err)
	}
	fmt.Println("ready", cluster.ListenAddrs()[0])
	select {}
}
