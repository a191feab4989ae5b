package orders

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
)

var ready = regexp.MustCompile(`^ready .* bootstrap=(\S+) control=(\S+)\n$`)

// TestBroker is a Kafka broker for a test binary, in a process of its own that ends with this one, however this one ends.
type TestBroker struct {
	// Where clients connect to: 127.0.0.1:34567.
	BootstrapServers string

	control string
	command *exec.Cmd
}

// Rule is what the broker tells about a rule: how many requests it has acted on.
type Rule struct {
	ID   int `json:"id"`
	Hits int `json:"hits"`
}

// StartTestBroker starts `barnabas testbroker`, which is on the path, and waits until it serves.
func StartTestBroker(arguments ...string) (*TestBroker, error) {
	arguments = append([]string{"testbroker", "--parent", strconv.Itoa(os.Getpid())}, arguments...)
	command := exec.Command("barnabas", arguments...)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	broker := &TestBroker{command: command}
	line, err := bufio.NewReader(output).ReadString('\n')
	found := ready.FindStringSubmatch(line)
	if found == nil {
		broker.Stop()
		return nil, fmt.Errorf("no ready line from the broker: %q, %v", line, err)
	}
	broker.BootstrapServers, broker.control = found[1], found[2]
	return broker, nil
}

// Stop ends the broker and waits for its end.
func (b *TestBroker) Stop() {
	_ = b.command.Process.Signal(syscall.SIGTERM)
	_ = b.command.Wait()
}

// Ask sends body as JSON (nil: none) and puts the answer into answer (nil: nowhere).
func (b *TestBroker) Ask(method, path string, body, answer any) error {
	var sent bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&sent).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequest(method, b.control+path, &sent)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	told, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, path, told)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(told, answer)
}
