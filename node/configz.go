package node

import (
	"encoding/json"

	logsapi "k8s.io/component-base/logs/api/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/bowline-k8s/bowline/config"
)

// configz returns what /configz shows: the settings that a kubelet has too, as a KubeletConfiguration, and
// Bowline's own configuration of the host. Neither has credentials. logging and tracing are those of the process, or
// nil.
func configz(cfg *config.Host, logging *logsapi.LoggingConfiguration, tracing *tracingapi.TracingConfiguration) (map[string]any, error) {
	shown := shownConfig(cfg)
	kubelet, err := kubeletConfiguration(shown)
	if err != nil {
		return nil, err
	}
	if logging != nil {
		kubelet.Logging = *logging
	}
	kubelet.Tracing = tracing
	return map[string]any{"kubeletconfig": kubelet, "bowlineconfig": shown}, nil
}

// kubeletConfiguration translates the settings of a host. Fields with a kubelet's meaning have a kubelet's
// name, so that most of them need no code.
func kubeletConfiguration(cfg *config.Host) (*kubeletconfig.KubeletConfiguration, error) {
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	out := &kubeletconfig.KubeletConfiguration{}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, err
	}
	out.APIVersion, out.Kind = kubeletconfig.SchemeGroupVersion.String(), "KubeletConfiguration"
	enabled := true
	out.EnableServer = &enabled
	out.Address, out.Port = cfg.Server.Address, cfg.Server.Port
	out.TLSCertFile, out.TLSPrivateKeyFile = cfg.Server.TLSCertFile, cfg.Server.TLSPrivateKeyFile
	out.PodLogsDir, out.RegisterWithTaints = cfg.PodLogsDirectory, cfg.Taints
	out.ContainerRuntimeEndpoint = "unix://" + cfg.SocketPath()
	return out, nil
}
