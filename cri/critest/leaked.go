package critest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	kubelettypes "k8s.io/kubelet/pkg/types"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	containerdtypes "github.com/containerd/containerd/api/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Planter creates the remains of a start in containerd that was interrupted at a certain moment,
// which is too short to hit deliberately.
type Planter interface {
	// Task creates a task for a container that the CRI has created but not started.
	Task(ctx context.Context, containerID string) error
	// Container creates a container like containerID, with a task, that the CRI does not know, and
	// returns its ID.
	Container(ctx context.Context, containerID string) (string, error)
	// Sandbox creates the record of a sandbox without a container, as a shim may create one itself.
	// It returns the sandbox's ID and a function that removes the record, or Unimplemented on
	// containerd 1, which has no such records.
	Sandbox(ctx context.Context) (id string, remove func() error, err error)
	// Left reports whether containerd has a container or a task of this ID.
	Left(ctx context.Context, id string) (bool, error)
}

// ContainerdPlanter plants over a connection to containerd's socket.
func ContainerdPlanter(conn grpc.ClientConnInterface) Planter { return planter{conn} }

type planter struct{ conn grpc.ClientConnInterface }

func namespaced(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
}

func (p planter) record(ctx context.Context, id string) (*containersapi.Container, error) {
	r, err := containersapi.NewContainersClient(p.conn).Get(ctx, &containersapi.GetContainerRequest{ID: id})
	return r.GetContainer(), err
}

func (p planter) Task(ctx context.Context, id string) error {
	ctx = namespaced(ctx)
	c, err := p.record(ctx, id)
	if err != nil {
		return err
	}
	root, err := snapshotsapi.NewSnapshotsClient(p.conn).Mounts(ctx, &snapshotsapi.MountsRequest{Snapshotter: c.Snapshotter, Key: c.SnapshotKey})
	if err != nil {
		return err
	}
	_, err = tasksapi.NewTasksClient(p.conn).Create(ctx, &tasksapi.CreateTaskRequest{ContainerID: id, Rootfs: root.Mounts})
	return err
}

func (p planter) Container(ctx context.Context, like string) (string, error) {
	own := namespaced(ctx)
	c, err := p.record(own, like)
	if err != nil {
		return "", err
	}
	snapshots := snapshotsapi.NewSnapshotsClient(p.conn)
	info, err := snapshots.Stat(own, &snapshotsapi.StatSnapshotRequest{Snapshotter: c.Snapshotter, Key: c.SnapshotKey})
	if err != nil {
		return "", err
	}
	c.ID = fmt.Sprintf("planted-%d", time.Now().UnixNano())
	c.SnapshotKey = c.ID
	// Create the record first: containerd garbage-collects a snapshot that no record names.
	if _, err := containersapi.NewContainersClient(p.conn).Create(own, &containersapi.CreateContainerRequest{Container: c}); err != nil {
		return "", err
	}
	if _, err := snapshots.Prepare(own, &snapshotsapi.PrepareSnapshotRequest{
		Snapshotter: c.Snapshotter, Key: c.ID, Parent: info.Info.Parent}); err != nil {
		return "", err
	}
	return c.ID, p.Task(ctx, c.ID)
}

func (p planter) Sandbox(ctx context.Context) (string, func() error, error) {
	ctx = namespaced(ctx)
	id := fmt.Sprintf("planted-%d", time.Now().UnixNano())
	store := sandboxapi.NewStoreClient(p.conn)
	_, err := store.Create(ctx, &sandboxapi.StoreCreateRequest{
		Sandbox: &containerdtypes.Sandbox{SandboxID: id, Runtime: &containerdtypes.Sandbox_Runtime{Name: "io.containerd.runc.v2"}}})
	return id, func() error {
		_, err := store.Delete(ctx, &sandboxapi.StoreDeleteRequest{SandboxID: id})
		return err
	}, err
}

func (p planter) Left(ctx context.Context, id string) (bool, error) {
	ctx = namespaced(ctx)
	records, err := containersapi.NewContainersClient(p.conn).List(ctx, &containersapi.ListContainersRequest{Filters: []string{"id==" + id}})
	if err != nil {
		return false, err
	}
	tasks, err := tasksapi.NewTasksClient(p.conn).List(ctx, &tasksapi.ListTasksRequest{})
	if err != nil {
		return false, err
	}
	for _, task := range tasks.Tasks {
		if task.ID == id {
			return true, nil
		}
	}
	return len(records.Containers) > 0, nil
}

// testForgottenTask: a container can be removed although the CRI does not know of its task.
func testForgottenTask(s *suite, t *testing.T) {
	if s.Planter == nil {
		t.Skip("the runtime is not containerd")
	}
	ctx, sandbox := t.Context(), s.sandboxConfig(t)
	sandboxID := s.runSandbox(t, sandbox)
	id := s.create(t, sandboxID, sandbox, s.script("c", "wait"))
	testutil.Must(t, s.Planter.Task(ctx, id))
	if err := s.Client.RemoveContainer(ctx, id); err != nil {
		t.Error(err)
	}
	s.notLeft(t, id)
}

// testLeaked: RemoveLeaked removes what containerd has of a pod and its CRI does not know, and
// nothing of another pod.
func testLeaked(s *suite, t *testing.T) {
	if s.Planter == nil {
		if younger, err := s.Client.RemoveLeaked(t.Context(), "some-uid", time.Now()); err != nil || younger != 0 {
			t.Errorf("where there can be none: %d, %v", younger, err)
		}
		return
	}
	ctx := t.Context()
	var planted, sandboxes []string
	var uids []types.UID
	for _, name := range []string{"one", "two"} {
		sandbox := s.sandboxConfig(t)
		uid := types.UID(sandbox.Metadata.Uid)
		sandbox.Labels[kubelettypes.KubernetesPodUIDLabel] = string(uid)
		sandboxID := s.runSandbox(t, sandbox)
		c := s.script(name, "wait")
		c.Labels[kubelettypes.KubernetesPodUIDLabel] = string(uid)
		id, err := s.Planter.Container(ctx, s.create(t, sandboxID, sandbox, c))
		testutil.Must(t, err)
		planted, sandboxes, uids = append(planted, id), append(sandboxes, sandboxID), append(uids, uid)
	}
	for i, uid := range uids {
		if left, err := s.Planter.Left(ctx, planted[i]); err != nil || !left {
			t.Fatalf("before: left %v, %v", left, err)
		}
		testutil.Must(t, s.Client.RemovePodSandbox(ctx, sandboxes[i]))
		if younger, err := s.Client.RemoveLeaked(ctx, uid, time.Now().Add(-time.Hour)); err != nil || younger != 1 {
			t.Errorf("of what is made since an hour: %d younger, %v", younger, err)
		}
		if left, err := s.Planter.Left(ctx, planted[i]); err != nil || !left {
			t.Errorf("what is too young: left %v, %v", left, err)
		}
		for range 2 {
			if younger, err := s.Client.RemoveLeaked(ctx, uid, time.Now()); err != nil || younger != 0 {
				t.Fatalf("%d younger, %v", younger, err)
			}
		}
		s.notLeft(t, planted[i])
	}
}

// testRecords: HasRecord distinguishes what containerd has a record of.
func testRecords(s *suite, t *testing.T) {
	has := func(what, id string, want bool) {
		t.Helper()
		if got, err := s.Client.HasRecord(t.Context(), id); err != nil || got != want {
			t.Errorf("%s: has a record: %v, %v", what, got, err)
		}
	}
	if s.Planter == nil {
		has("where it is unknown", "some-id", true)
		return
	}
	has("what never was", "some-id", false)
	sandbox := s.runSandbox(t, s.sandboxConfig(t))
	has("a sandbox", sandbox, true)
	testutil.Must(t, s.Client.RemovePodSandbox(t.Context(), sandbox))
	has("a sandbox that was removed", sandbox, false)
	id, remove, err := s.Planter.Sandbox(t.Context())
	if status.Code(err) == codes.Unimplemented {
		return
	}
	testutil.Must(t, err)
	has("a sandbox without a container", id, true)
	testutil.Must(t, remove())
	has("the same, removed", id, false)
}

func (s *suite) notLeft(t *testing.T, id string) {
	t.Helper()
	if left, err := s.Planter.Left(t.Context(), id); err != nil || left {
		t.Errorf("%s is left in the runtime: %v, %v", id, left, err)
	}
}
