package volume

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest/recordtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestEveryVersionsPods: a pod whose record an older version wrote is ours. Its next worker writes
// the record in today's form, and its directory is removed with it.
func TestEveryVersionsPods(t *testing.T) {
	const uid = types.UID("3f2a")
	recordtest.Each(t, func(t *testing.T, version string, h host.Host, root string) {
		testutil.Must(t, CheckRecords(t.Context(), h, root))
		volumes := path.Join(PodDir(root, uid), "volumes")
		testutil.Must(t, h.MkdirAll(t.Context(), volumes, podDirMode, nil))
		testutil.Must(t, h.MkdirAll(t.Context(), PodDir(root, "foreign"), podDirMode, nil))
		records, err := h.List(t.Context(), RecordDir(root))
		testutil.Must(t, err)
		if uids, err := realManager(t, h, newCluster(), root).Orphans(t.Context(), records); err != nil || len(uids) != 1 || uids[0] != uid {
			t.Errorf("orphans: %v, %v", uids, err)
		}
		adopted := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "app", UID: uid}}
		testutil.Must(t, makePodDirs(t.Context(), realManager(t, h, newCluster(), root), adopted))
		const want = `{"schemaVersion":1,"namespace":"ns","name":"app"}`
		if data, err := h.ReadFile(t.Context(), path.Join(RecordDir(root), string(uid)), 1<<10); err != nil || string(data) != want {
			t.Errorf("written as %s: %v", data, err)
		}
		testutil.Must(t, realManager(t, h, newCluster(), root).Release(t.Context(), uid))
		if _, err := h.Stat(t.Context(), PodDir(root, uid)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the pod's directory: %v", err)
		}
	})
}

// TestNewerPods: a host with a record of a newer version, or with one that is too large to read, is
// refused in one sentence, and the record stays as it is.
func TestNewerPods(t *testing.T) {
	large := `{"schemaVersion":2,"more":"` + strings.Repeat("x", maxRecord) + `"}`
	recordtest.Each(t, func(t *testing.T, version string, h host.Host, root string) {
		dir := RecordDir(root)
		for name, c := range map[string]struct{ file, want string }{
			"newer":                {`{"schemaVersion":2,"namespace":"ns","more":true}`, "the pod record " + path.Join(dir, "5b1c") + " belongs to another Bowline: it has schema version 2"},
			"too large":            {large, "the pod record " + path.Join(dir, "5b1c")},
			"damaged":              {"x", ""},
			"empty":                {"", ""},
			"of this version":      {`{"schemaVersion":1,"namespace":"ns","name":"b"}`, ""},
			"with another field":   {`{"schemaVersion":1,"namespace":"ns","name":"b","more":1}`, ""},
			"of the first release": {`{"namespace":"ns","name":"b"}`, ""},
		} {
			at := path.Join(dir, "5b1c")
			testutil.Must(t, h.WriteFile(t.Context(), at, []byte(c.file), 0o640))
			err := CheckRecords(t.Context(), h, root)
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%s: %v", name, err)
			}
			if data, err := h.ReadFile(t.Context(), at, 1<<20); err != nil || string(data) != c.file {
				t.Errorf("%s: the record is %.50s: %v", name, data, err)
			}
			testutil.Must(t, h.Remove(t.Context(), at))
		}
		// The temporary file of an interrupted write is not a record.
		testutil.Must(t, h.WriteFile(t.Context(), path.Join(dir, ".5b1c.tmp"), []byte(`{"schemaVersion":2}`), 0o640))
		testutil.Must(t, CheckRecords(t.Context(), h, root))
		testutil.Must(t, CheckRecords(t.Context(), h, path.Join(root, "none")))
	})
}

func TestKeysOfPods(t *testing.T) { recordtest.Keys(t, recordVersion, "pods", record{}) }

// TestEveryVersionsClaims: a pod keeps the path of the host that an older version recorded, and no
// other. A record of a newer version is refused in one sentence and stays as it is.
func TestEveryVersionsClaims(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "app", UID: "3f2a"}}
	v := claimVolume(false)
	of := func(path string) *v1.PersistentVolume {
		return &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}}}
	}
	recordtest.Each(t, func(t *testing.T, version string, h host.Host, root string) {
		m := realManager(t, h, newCluster(), root)
		has := func(what, path string, want bool) {
			t.Helper()
			if got, err := m.given(t.Context(), p, &v, of(path), setUpState{}); err != nil || got != want {
				t.Errorf("%s: it has %s: %t, %v", what, path, got, err)
			}
		}
		has("as it was released", "/srv", true)
		has("as it was released", "/etc", false)
		testutil.Must(t, m.recordGiven(t.Context(), p, &v, of("/mnt")))
		has("written again", "/mnt", true)
		at := m.givenPath(p, &v)
		if data, err := h.ReadFile(t.Context(), at, 1<<10); err != nil || string(data) != `{"schemaVersion":1,"source":"hostPath /mnt"}` {
			t.Errorf("written as %s: %v", data, err)
		}
		for _, damaged := range []string{"", "{", `{"schemaVersion":1,"source":"hostPath /mnt","more":1}`} {
			testutil.Must(t, h.WriteFile(t.Context(), at, []byte(damaged), 0o640))
			has("damaged", "/mnt", false)
		}
		const newer = `{"schemaVersion":2,"source":"hostPath /mnt","more":true}`
		testutil.Must(t, h.WriteFile(t.Context(), at, []byte(newer), 0o640))
		_, err := m.given(t.Context(), p, &v, of("/mnt"), setUpState{})
		if want := "the volume record " + at + " belongs to another Bowline: it has schema version 2"; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("newer: %v", err)
		}
		if data, err := h.ReadFile(t.Context(), at, 1<<10); err != nil || string(data) != newer {
			t.Errorf("the newer record is %s: %v", data, err)
		}
	})
}

func TestKeysOfClaims(t *testing.T) {
	recordtest.KeysAt(t, givenVersion, "claims", "pods/3f2a/plugins/bowline.io~claims/data", givenRecord{})
}
