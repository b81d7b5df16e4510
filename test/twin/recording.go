package twin

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Recording is what was seen of a scenario on a node.
type Recording struct {
	Scenario string `json:"scenario"`
	Node     string `json:"node"`   // the node's name
	HostIP   string `json:"hostIP"` // the node's address
	// Namespace of the pod. Each node has its own.
	Namespace string  `json:"namespace"`
	Entries   []Entry `json:"entries"`
}

// Entry is one change, in the order in which the API server sent them.
type Entry struct {
	At      time.Time `json:"at"` // when it arrived
	Pod     *v1.Pod   `json:"pod,omitempty"`
	Deleted bool      `json:"deleted,omitempty"` // Pod is then the last version
	Event   *v1.Event `json:"event,omitempty"`
}

// Save writes the recording as JSON, without the pods' specs, which are the test's own input.
func (r Recording) Save(path string) error {
	r.Entries = slices.Clone(r.Entries)
	for i, e := range r.Entries {
		if e.Pod != nil {
			p := *e.Pod
			p.Spec = v1.PodSpec{}
			r.Entries[i].Pod = &p
		}
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// Load reads a file of Save.
func Load(path string) (Recording, error) {
	var r Recording
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		err = fmt.Errorf("read the recording: %w", err)
	}
	return r, err
}
