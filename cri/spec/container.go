package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// ContainerInput is the input for one instance of a container that the pod's spec does not have,
// such as its image ID, environment and mounts.
type ContainerInput struct {
	Attempt uint32   // ContainerMetadata.Attempt: the restart count
	Crashes uint32   // pod.Container.Crashes
	PodIPs  []string // primary first; empty on the host network
	// ImageRef is the runtime's name of the image (Image.Id); if empty, the name in the spec is
	// used.
	ImageRef  string
	ImageUser ImageUser // of that image: UserOf(ImageStatus)
	Env       []EnvVar  // from Env, in order
	// Mounts are the prepared volumes on the host, by volume name.
	Mounts map[string]VolumeMount
	// SubPaths are the resolved host paths of volume mounts with a subPath, by index into
	// VolumeMounts; see SubPaths.
	SubPaths           map[int]string
	EtcHostsPath       string // on the host; empty mounts none
	TerminationLogPath string // on the host; empty mounts none
	// TargetID is the container whose processes an ephemeral container can see.
	TargetID string
	// SupplementalGroups come from the pod's persistent volumes.
	SupplementalGroups []int64
	// Devices are the volumeDevices and the devices of device plugins.
	Devices    []*runtimeapi.Device
	CDIDevices []*runtimeapi.CDIDevice
}

// Container returns the ContainerConfig of one instance of c. An error means that the spec requests
// something that is not possible; its text is the message of a container that waits with reason
// CreateContainerConfigError.
func Container(p *v1.Pod, c *v1.Container, m Machine, in ContainerInput) (*runtimeapi.ContainerConfig, error) {
	mounts, err := mounts(p, c, m, in)
	if err != nil {
		return nil, err
	}
	security, err := containerSecurity(p, c, m, in)
	if err != nil {
		return nil, err
	}
	signal, err := stopSignal(c)
	if err != nil {
		return nil, err
	}
	if users := security.NamespaceOptions.UsernsOptions; users.GetMode() == runtimeapi.NamespaceMode_POD {
		for _, mount := range mounts {
			mount.UidMappings, mount.GidMappings = users.Uids, users.Gids
		}
	}
	image := in.ImageRef
	if image == "" {
		image = c.Image
	}
	command, args := Command(c, in.Env)
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: c.Image},
		Command:     command,
		Args:        args,
		WorkingDir:  c.WorkingDir,
		Envs:        envs(in.Env),
		Mounts:      mounts,
		Devices:     in.Devices,
		CDIDevices:  in.CDIDevices,
		Labels:      containerLabels(p, c, m),
		Annotations: containerAnnotations(p, c, &in),
		LogPath:     LogPath(c.Name, in.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		StopSignal:  signal,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       ContainerResources(p, c, m),
			SecurityContext: security,
		},
	}, nil
}

// Command expands $(VAR) in the container's command and arguments.
func Command(c *v1.Container, env []EnvVar) (command, args []string) {
	lookup := envLookup(env)
	for _, s := range c.Command {
		command = append(command, Expand(s, lookup))
	}
	for _, s := range c.Args {
		args = append(args, Expand(s, lookup))
	}
	return command, args
}

func envs(env []EnvVar) []*runtimeapi.KeyValue {
	var out []*runtimeapi.KeyValue
	for _, e := range env {
		out = append(out, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	return out
}

func containerLabels(p *v1.Pod, c *v1.Container, m Machine) map[string]string {
	return map[string]string{
		pod.LabelPodName:       p.Name,
		pod.LabelPodNamespace:  p.Namespace,
		pod.LabelPodUID:        string(p.UID),
		pod.LabelContainerName: c.Name,
		pod.LabelOwner:         m.Owner,
	}
}

// containerAnnotations returns the annotations that a later process needs to manage this instance
// after the pod object has changed or is gone.
func containerAnnotations(p *v1.Pod, c *v1.Container, in *ContainerInput) map[string]string {
	out := optional(p, c)
	maps.Copy(out, map[string]string{
		pod.AnnotationHash:              Hash(c),
		pod.AnnotationImage:             c.Image,
		pod.AnnotationRestartCount:      strconv.FormatUint(uint64(in.Attempt), 10),
		pod.AnnotationCrashes:           strconv.FormatUint(uint64(in.Crashes), 10),
		pod.AnnotationTerminationPolicy: string(c.TerminationMessagePolicy),
		pod.AnnotationSize:              mustJSON(pod.SizeOf(&p.Spec, c)),
	})
	if s := p.DeletionGracePeriodSeconds; s != nil {
		out[pod.AnnotationPodDeletionGrace] = strconv.FormatInt(*s, 10)
	}
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
		out[pod.AnnotationPodGrace] = strconv.FormatInt(*s, 10)
	}
	return out
}

// mustJSON marshals API types, which never fails.
func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("marshal %T: %v", v, err))
	}
	return string(b)
}

// stopSignal returns ContainerConfig.StopSignal: "SIGRTMIN+3" is SIGNAL_SIGRTMINPLUS3.
func stopSignal(c *v1.Container) (runtimeapi.Signal, error) {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil || *c.Lifecycle.StopSignal == "" {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, nil
	}
	name := string(*c.Lifecycle.StopSignal)
	key := "SIGNAL_" + strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(name)
	signal, ok := runtimeapi.Signal_value[key]
	if !ok {
		return 0, fmt.Errorf("container %q has unknown stopSignal %q", c.Name, name)
	}
	return runtimeapi.Signal(signal), nil
}

// SignalName returns the API's name of a signal, as stopSignal reads it; empty if the runtime does not know the
// container's signal.
func SignalName(s runtimeapi.Signal) string {
	name, ok := runtimeapi.Signal_name[int32(s)]
	if !ok || s == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return ""
	}
	return strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(strings.TrimPrefix(name, "SIGNAL_"))
}
