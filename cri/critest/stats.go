package critest

import (
	"testing"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// The stats of each running container have its labels and its memory usage. Not every runtime
// reports stats of sandboxes.
func testStats(s *suite, t *testing.T) {
	id, sandboxID, _ := s.start(t, s.script("measured", "wait"))
	list, err := s.Client.ListContainerStats(t.Context(), "")
	testutil.Must(t, err)
	found := false
	for _, st := range list {
		if st.GetAttributes().GetId() != id {
			continue
		}
		found = true
		if st.GetAttributes().GetLabels()["container"] != "measured" {
			t.Errorf("its labels are %v", st.GetAttributes().GetLabels())
		}
		if st.GetMemory().GetWorkingSetBytes().GetValue() == 0 {
			t.Errorf("its memory is %v", st.GetMemory())
		}
	}
	if !found {
		t.Errorf("%s is not among %d containers", id, len(list))
	}
	sandboxes, err := s.Client.ListPodSandboxStats(t.Context())
	if cri.IsUnimplemented(err) {
		return
	}
	testutil.Must(t, err)
	for _, st := range sandboxes {
		if st.GetAttributes().GetId() == sandboxID {
			return
		}
	}
	t.Errorf("sandbox %s is not among %d", sandboxID, len(sandboxes))
}
