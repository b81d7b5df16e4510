package cri

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	kubelettypes "k8s.io/kubelet/pkg/types"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
)

// If the caller of a start goes away, containerd's CRI abandons the start wherever it is. What it
// has created by then may stay: a task that the CRI considers ended (so that it refuses to remove
// the container), or a whole sandbox that it has forgotten. containerd itself still knows them, and
// its own services can end them.

// RemoveLeaked kills and removes what containerd still has of a pod. Call it only if the CRI
// lists nothing of the pod any more. Containers created after before, by the host's clock, are
// counted and kept: the CRI may be about to list them. If the runtime is not containerd, nothing
// happens.
func (c *Client) RemoveLeaked(ctx context.Context, pod types.UID, before time.Time) (younger int, err error) {
	ctx = containerdContext(ctx)
	records := containersapi.NewContainersClient(c.conn)
	list, err := records.List(ctx, &containersapi.ListContainersRequest{
		Filters: []string{fmt.Sprintf("labels.%q==%q", kubelettypes.KubernetesPodUIDLabel, string(pod))},
	})
	if IsUnimplemented(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("list the pod's containers in containerd: %w", about(err, string(pod)))
	}
	var faults []error
	for _, r := range list.Containers {
		if r.CreatedAt.AsTime().After(before) {
			younger++
			continue
		}
		_, err := c.endTask(ctx, r.ID)
		if err == nil {
			// containerd then garbage-collects its snapshot.
			_, err = records.Delete(ctx, &containersapi.DeleteContainerRequest{ID: r.ID})
			err = unlessNotFound(about(err, r.ID))
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("remove containers that containerd's CRI plugin has lost: %w", err))
		}
	}
	return younger, errors.Join(faults...)
}

// endTask kills the processes of a container and deletes its task; ended reports whether there was
// a task. ctx must name containerd's namespace.
func (c *Client) endTask(ctx context.Context, id string) (ended bool, err error) {
	tasks := tasksapi.NewTasksClient(c.conn)
	_, err = tasks.Kill(ctx, &tasksapi.KillRequest{ContainerID: id, Signal: uint32(syscall.SIGKILL), All: true})
	// A process that has ended also gives "not found" or "failed precondition".
	if err != nil && !IsNotFound(err) && !isPrecondition(err) {
		return false, about(err, id)
	}
	if _, err := tasks.Wait(ctx, &tasksapi.WaitRequest{ContainerID: id}); err != nil && !IsNotFound(err) {
		return false, about(err, id)
	}
	_, err = tasks.Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: id})
	return err == nil, unlessNotFound(about(err, id))
}

// containerdContext returns a context for calls of containerd's own services.
func containerdContext(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
}

func isPrecondition(err error) bool {
	var e *Error
	return errors.As(err, &e) && status.Code(e.Err) == codes.FailedPrecondition
}

// HasRecord reports whether containerd has a container or a sandbox of this ID, whatever its CRI
// knows. It returns true if the runtime is not containerd, as there is no way to tell. (A sandbox
// that its shim creates by itself has no container.)
func (c *Client) HasRecord(ctx context.Context, id string) (bool, error) {
	ctx = containerdContext(ctx)
	filters := []string{fmt.Sprintf("id==%q", id)}
	list, err := containersapi.NewContainersClient(c.conn).List(ctx, &containersapi.ListContainersRequest{Filters: filters})
	if IsUnimplemented(err) {
		return true, nil
	}
	if err != nil {
		return false, about(err, id)
	}
	if len(list.Containers) > 0 {
		return true, nil
	}
	sandboxes, err := sandboxapi.NewStoreClient(c.conn).List(ctx, &sandboxapi.StoreListRequest{Filters: filters})
	if IsUnimplemented(err) { // containerd 1
		return false, nil
	}
	if err != nil {
		return false, about(err, id)
	}
	return len(sandboxes.List) > 0, nil
}
