package syncloop_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2/ktesting"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestStoryOfAPod: with -v=2 the log tells what happened to a pod, from its first sight to its end,
// in about ten lines. The order of concurrent operations does not matter.
func TestStoryOfAPod(t *testing.T) {
	w := newParallelWorld(t)
	w.verbosity = 2
	w.up()
	w.createReady(newPod("web"))
	w.api.delete("web", 1)
	w.untilGone()
	want := []string{
		"Received a change of the pod ADD",
		"Finished an operation pull app",
		"Finished an operation sandbox",
		"Finished an operation volumes",
		"Finished an operation start app",
		"Changed pod readiness true",
		"Received a change of the pod DELETE",
		"Finished an operation stop app",
		"Changed pod readiness false",
		"Finished an operation release",
		"Received a change of the pod REMOVE",
		"Stopped the pod worker",
	}
	testutil.Eventually(t, "the story is complete", func() bool { return len(w.node.story("web")) >= len(want) })
	story := w.node.story("web")
	slices.Sort(story[1:4])
	slices.Sort(story[10:])
	if !slices.Equal(story, want) {
		t.Errorf("the story is\n%s", strings.Join(story, "\n"))
	}
}

// story returns the messages about a pod with some of their values, without repeated ones: an update
// of a deleted pod is another DELETE.
func (n *node) story(name string) (story []string) {
	for _, e := range n.log.GetSink().(ktesting.Underlier).GetBuffer().Data() {
		values := map[string]string{}
		for _, list := range [][]any{e.WithKVList, e.ParameterKVList} {
			for i := 0; i+1 < len(list); i += 2 {
				values[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
			}
		}
		line := e.Message
		for _, key := range []string{"op", "container", "ready"} {
			if values[key] != "" {
				line += " " + values[key]
			}
		}
		if strings.Contains(values["pod"], name) && !slices.Contains(story, line) {
			story = append(story, line)
		}
	}
	return story
}
