package cri

import (
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
)

// method has the properties of one gRPC method that the interceptor needs.
type method struct {
	name    string
	label   string
	timeout time.Duration // 0: the caller sets its own
	size    budget.Kind   // of the reply
	// observed: the reply lists objects of the runtime, and grows with their number.
	observed bool
	// health: the reply reports the state of the runtime; the call takes no turn.
	health bool
	// output: the reply carries the output of a pod's command.
	output bool
	// inflatable: a pod or its image can make the reply too large, whatever is bounded elsewhere. Such
	// a reply is refused, and the host is not to blame.
	inflatable bool
}

const (
	quick  = 10 * time.Second // answered from the runtime's memory
	lookup = 30 * time.Second // lists and statuses of a loaded runtime
	action = 2 * time.Minute  // starts and ends processes, mounts and networks
)

// methods by full gRPC name, built once so that a call allocates no label.
var methods = func() map[string]method {
	m := map[string]method{}
	add := func(service string, timeout time.Duration, names ...string) {
		for _, n := range names {
			m["/"+service+"/"+n] = method{name: n, label: "cri/" + n, timeout: timeout, size: budget.LineBytes}
		}
	}
	const runtime, image = "runtime.v1.RuntimeService", "runtime.v1.ImageService"
	add(runtime, quick, "Version", "Status", "RuntimeConfig", "UpdateRuntimeConfig")
	add(runtime, lookup, "PodSandboxStatus", "ListPodSandbox", "ContainerStatus", "ListContainers",
		"ListContainerStats", "ListPodSandboxStats", "Exec", "Attach", "PortForward", "ReopenContainerLog")
	add(runtime, action, "StopPodSandbox", "RemovePodSandbox", "CreateContainer", "StartContainer",
		"RemoveContainer", "UpdateContainerResources")
	// Includes the network plugin and the first pull of the pause image.
	add(runtime, 2*action, "RunPodSandbox")
	add(runtime, 0, "StopContainer", "ExecSync", "GetContainerEvents", "CheckpointContainer")
	add(image, lookup, "ImageStatus", "ListImages", "ImageFsInfo")
	add(image, action, "RemoveImage")
	add(image, 0, "PullImage")
	// containerd's own services that are used in addition to the CRI.
	own := func(full, name string, timeout time.Duration) {
		m["/containerd.services."+full] = method{name: name, label: "cri/" + name, timeout: timeout, size: budget.StatusBytes}
	}
	own("version.v1.Version/Version", "ContainerdVersion", quick)
	own("events.v1.Events/Subscribe", "Subscribe", 0)
	own("containers.v1.Containers/List", "ContainerdList", lookup)
	own("containers.v1.Containers/Delete", "ContainerdDelete", lookup)
	own("sandbox.v1.Store/List", "ContainerdSandboxes", lookup)
	own("tasks.v1.Tasks/Kill", "ContainerdKill", lookup)
	own("tasks.v1.Tasks/Wait", "ContainerdWait", lookup)
	own("tasks.v1.Tasks/Delete", "ContainerdDeleteTask", action)
	// Those that write images (linkpull/store).
	own("leases.v1.Leases/Create", "ContainerdCreateLease", lookup)
	own("leases.v1.Leases/List", "ContainerdListLeases", lookup)
	own("leases.v1.Leases/Delete", "ContainerdDeleteLease", lookup)
	own("leases.v1.Leases/AddResource", "ContainerdAddToLease", lookup)
	own("content.v1.Content/Info", "ContainerdContentInfo", lookup)
	own("content.v1.Content/Update", "ContainerdLabelContent", lookup)
	own("content.v1.Content/Abort", "ContainerdAbortContent", lookup)
	own("content.v1.Content/Write", "ContainerdWriteContent", 0)
	own("snapshots.v1.Snapshots/Stat", "ContainerdStatSnapshot", lookup)
	own("snapshots.v1.Snapshots/Prepare", "ContainerdPrepareSnapshot", action)
	own("snapshots.v1.Snapshots/Commit", "ContainerdCommitSnapshot", action)
	own("snapshots.v1.Snapshots/Remove", "ContainerdRemoveSnapshot", action)
	own("diff.v1.Diff/Apply", "ContainerdApply", 0)
	own("images.v1.Images/Create", "ContainerdCreateImage", lookup)
	own("images.v1.Images/Update", "ContainerdUpdateImage", lookup)
	for full, e := range m {
		switch e.name {
		case "ListPodSandbox", "ListContainers", "ListContainerStats", "ContainerdSandboxes":
			e.size, e.observed = budget.ReplyBytes, true
		case "ListPodSandboxStats", // has everything that the other lists have, and the statistics
			"ListImages",     // the names and users of any number of images
			"ContainerdList": // the environment of each container
			e.size, e.observed, e.inflatable = budget.ReplyBytes, true, true
		case "Version", "Status", "RuntimeConfig":
			e.size, e.observed, e.health = budget.StatusBytes, true, true
		case "PodSandboxStatus", "ImageFsInfo":
			e.size, e.observed = budget.StatusBytes, true
		case "ContainerStatus", // an error that quotes a command; the groups of the image
			"ImageStatus": // the names of the image and its user
			e.size, e.observed, e.inflatable = budget.StatusBytes, true, true
		case "GetContainerEvents": // each has the statuses of its pod
			e.size, e.inflatable = budget.StatusBytes, true
		case "Subscribe":
			e.size = budget.LineBytes
		case "ExecSync":
			e.output = true
		}
		m[full] = e
	}
	return m
}()

func methodOf(full string) method {
	if m, ok := methods[full]; ok {
		return m
	}
	name := full[strings.LastIndexByte(full, '/')+1:]
	return method{name: name, label: "cri/" + name, timeout: action, size: budget.StatusBytes}
}
