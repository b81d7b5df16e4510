package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// bowlineUnit is a Bowline process. It translates a KubeletConfiguration: what differs from the node's
// own becomes a field of the host, under its name.
type bowlineUnit struct {
	*labtest.Bowline
	extra []string       // the host's lines of the first start
	first map[string]any // the KubeletConfiguration of the first start
}

// remember reads the KubeletConfiguration with which the node runs now.
func (u *bowlineUnit) remember(ctx context.Context) error {
	data, err := u.Lab.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", u.Host, "proxy/configz").DoRaw(ctx)
	if err != nil {
		return err
	}
	var configz struct {
		KubeletConfig map[string]any `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(data, &configz); err != nil {
		return err
	}
	u.first = configz.KubeletConfig
	return nil
}

func (u *bowlineUnit) Start(kubeletConfiguration []byte) error {
	u.Extra = u.extra
	if len(kubeletConfiguration) > 0 {
		lines, err := hostLines(kubeletConfiguration, u.first)
		if err != nil {
			return err
		}
		u.Extra = append(slices.Clone(u.extra), lines...)
	}
	return u.Bowline.Start()
}

// hostLines returns the lines of a host's configuration that change first into wanted. Fields that
// Bowline does not have are left out: the suite sets some that a kubelet needs for itself.
func hostLines(wanted []byte, first map[string]any) ([]string, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(wanted, &fields); err != nil {
		return nil, fmt.Errorf("the suite's KubeletConfiguration: %w", err)
	}
	known := map[string]bool{}
	settings := reflect.TypeFor[config.NodeSettings]()
	for i := range settings.NumField() {
		name, _, _ := strings.Cut(settings.Field(i).Tag.Get("json"), ",")
		known[name] = true
	}
	var lines []string
	for name, value := range fields {
		if !known[name] || reflect.DeepEqual(value, first[name]) || first[name] == nil && zero(value) {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		lines = append(lines, name+": "+string(text))
	}
	slices.Sort(lines)
	return lines, nil
}

// zero reports whether a value of a JSON document says nothing.
func zero(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == "" || v == "0s"
	case float64:
		return v == 0
	case bool:
		return !v
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, inner := range v {
			if !zero(inner) {
				return false
			}
		}
		return true
	}
	return false
}

// kubeletProcess is a real kubelet, run as the lab runs it but with the suite's configuration.
type kubeletProcess struct {
	lab  *labtest.Lab
	host string
	log  string
	argv []string // of the lab's own kubelet
	file string   // the configuration that it is started with

	*labtest.Process // nil before the first start
}

// newKubelet starts the lab's kubelet once to learn its command line. file will be its
// configuration, and log its log.
func newKubelet(ctx context.Context, lab *labtest.Lab, host, file, log string) (*kubeletProcess, error) {
	if err := lab.StartProcess(ctx, host, "kubelet"); err != nil {
		return nil, err
	}
	if err := lab.Refresh(ctx); err != nil {
		return nil, err
	}
	u := &kubeletProcess{lab: lab, host: host, log: log, file: file}
	for _, p := range lab.Host(host).Processes {
		if strings.HasSuffix(p.Name, "kubelet") {
			var err error
			if u.argv, err = argvOf(ctx, p.PID, "kubelet"); err != nil {
				return nil, err
			}
		}
	}
	i := slices.Index(u.argv, "--config")
	if i < 0 || i+1 == len(u.argv) {
		return nil, fmt.Errorf("the lab's kubelet has no --config: %q", u.argv)
	}
	own, err := os.ReadFile(u.argv[i+1])
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(readOnlyAddress)
	if err := os.WriteFile(u.file, fmt.Appendf(own, "readOnlyPort: %s\n", port), 0o644); err != nil {
		return nil, err
	}
	u.argv[i+1] = u.file
	return u, lab.StopProcess(ctx, host, "kubelet")
}

// argvOf returns the command line of a process, once it runs the program whose name ends in
// program. Before that it is the lab's own command, which enters the host and then executes the
// program; the kernel shows an empty command line during that call.
func argvOf(ctx context.Context, pid int, program string) (argv []string, err error) {
	err = labtest.Until(ctx, 30*time.Second, fmt.Sprintf("process %d to run %s", pid, program), func(context.Context) error {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return err
		}
		argv = strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
		if !strings.HasSuffix(argv[0], program) {
			return fmt.Errorf("it runs %q", argv)
		}
		return nil
	})
	return argv, err
}

func (u *kubeletProcess) Start(kubeletConfiguration []byte) error {
	if len(kubeletConfiguration) > 0 {
		if err := os.WriteFile(u.file, kubeletConfiguration, 0o644); err != nil {
			return err
		}
	}
	process, err := labtest.StartProcess("the kubelet", u.lab.Exec(context.Background(), u.host, u.argv...), u.log)
	if err != nil {
		return err
	}
	u.Process = process
	return nil
}

func (u *kubeletProcess) Stop() error { return u.Process.Stop(30 * time.Second) }
