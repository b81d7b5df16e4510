package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bowline-k8s/bowline/lab/cluster"
	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/node"
	"github.com/bowline-k8s/bowline/lab/proc"
	"github.com/bowline-k8s/bowline/lab/registry"
)

// Status is the current state of the lab. Paths are the same inside and outside the hosts unless
// said otherwise.
type Status struct {
	Dir       string          `json:"dir"`
	Index     int             `json:"index"`
	State     string          `json:"state"` // up: every process runs; partial; down
	Cluster   ClusterStatus   `json:"cluster"`
	Processes []ProcessStatus `json:"processes"` // of the control plane
	Hosts     []HostStatus    `json:"hosts"`
}

// ClusterStatus says how to reach the cluster.
type ClusterStatus struct {
	APIURL          string   `json:"apiURL"`
	Kubectl         string   `json:"kubectl"` // command line, without KUBECONFIG
	AdminKubeconfig string   `json:"adminKubeconfig"`
	UID             string   `json:"uid"` // of namespace kube-system; empty while the API server does not answer
	Domain          string   `json:"domain"`
	DNSIP           string   `json:"dnsIP"`
	PodCIDR         string   `json:"podCIDR"`
	ServiceCIDR     string   `json:"serviceCIDR"`
	ClientCA        string   `json:"clientCA"` // PEM file; the CA of the clients of the kubelet's API and of the serving certificates
	KubeletClient   KeyPair  `json:"kubeletClient"`
	Registry        string   `json:"registry"`        // as in image references
	RegistryAddress string   `json:"registryAddress"` // its address, plain HTTP
	Images          []string `json:"images"`
	AuditLog        string   `json:"auditLog,omitempty"` // one JSON event a line
}

// KeyPair names two PEM files.
type KeyPair struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// HostStatus says how to reach a host, and has what a node on it needs.
type HostStatus struct {
	Name           string          `json:"name"` // also the node's
	IP             string          `json:"ip"`
	PodCIDR        string          `json:"podCIDR"`
	PID            int             `json:"pid"`            // in all of its namespaces; 0 if it does not run
	Cgroup         string          `json:"cgroup"`         // seen from outside; the root inside
	Runtime        layout.Runtime  `json:"runtime"`        // containerd or crio
	RuntimeSocket  string          `json:"runtimeSocket"`  // its CRI endpoint, as a process in the host sees it
	OutsideSocket  string          `json:"outsideSocket"`  // the same socket from outside
	Root           string          `json:"root"`           // holds the host's own /var/lib/kubelet, /var/log/pods and so on
	NodeKubeconfig string          `json:"nodeKubeconfig"` // system:node:<name>
	Serving        KeyPair         `json:"serving"`        // for the kubelet's API
	ClientCA       string          `json:"clientCA"`
	SSH            SSHStatus       `json:"ssh"`
	Processes      []ProcessStatus `json:"processes"`
}

// SSHStatus says how to log into a host.
type SSHStatus struct {
	Address string `json:"address"` // host:port
	User    string `json:"user"`
	Key     string `json:"key"`     // private key file
	HostKey string `json:"hostKey"` // public key file
}

// ProcessStatus is one daemon.
type ProcessStatus struct {
	Name  string `json:"name"`
	State string `json:"state"` // running, died, stopped
	PID   int    `json:"pid,omitempty"`
	Log   string `json:"log"`
}

// GetStatus returns the configuration of the lab in c.Dir and the state of its processes.
func GetStatus(ctx context.Context, c Config) (*Status, error) {
	lab, s, err := find(c.Dir)
	if err != nil {
		return nil, err
	}
	st := &Status{Dir: c.Dir, Index: s.Index, Cluster: ClusterStatus{
		APIURL:          lab.APIURL(),
		Kubectl:         c.Tools.Bin + "/bowline-kube kubectl",
		AdminKubeconfig: lab.Kubeconfig("admin"),
		Domain:          layout.Domain,
		DNSIP:           lab.DNSServiceIP().String(),
		PodCIDR:         lab.PodNet().String(),
		ServiceCIDR:     lab.ServiceNet().String(),
		ClientCA:        lab.PKI("ca.crt"),
		KubeletClient:   KeyPair{lab.PKI("apiserver-kubelet-client.crt"), lab.PKI("apiserver-kubelet-client.key")},
		Registry:        layout.Registry,
		RegistryAddress: lab.RegistryAddress(),
	}}
	if s.Audit {
		st.Cluster.AuditLog = cluster.AuditLog(lab)
	}
	for _, b := range registry.BuiltIns {
		st.Cluster.Images = append(st.Cluster.Images, layout.Registry+"/"+b.Name)
	}
	for _, image := range registry.Kept(lab.Path("images")) {
		st.Cluster.Images = append(st.Cluster.Images, layout.Registry+"/"+image)
	}
	running, all := 0, 0
	process := func(name string) ProcessStatus {
		p := ProcessStatus{Name: name, State: "stopped", Log: lab.Log(name)}
		if r, err := proc.Read(lab.Path("run"), name); err == nil {
			p.State = "died"
			if r.Alive() {
				p.State, p.PID = "running", r.PID
			}
		}
		all++
		if p.State == "running" {
			running++
		}
		return p
	}
	for _, component := range append(append([]string{}, cluster.Components...), "registry") {
		st.Processes = append(st.Processes, process(component))
	}
	for _, h := range lab.Hosts(s.Hosts) {
		hs := HostStatus{
			Name: h.Name(), IP: h.IP().String(), PodCIDR: h.PodCIDR().String(), Cgroup: h.Cgroup(),
			RuntimeSocket: s.runtime().Socket(), Runtime: s.runtime(), Root: h.Path("root"),
			NodeKubeconfig: lab.Kubeconfig(h.Name()), ClientCA: lab.PKI("ca.crt"),
			Serving: KeyPair{lab.PKI(h.Name() + "-serving.crt"), lab.PKI(h.Name() + "-serving.key")},
			SSH: SSHStatus{Address: h.IP().String() + ":22", User: "root",
				Key: lab.Path("ssh", "id_ed25519"), HostKey: h.Path("ssh", "host_key.pub")},
		}
		if pid, ok := node.Pid(h); ok {
			hs.PID, hs.OutsideSocket = pid, Socket(pid, s.runtime())
		}
		for _, component := range append([]string{node.Keeper}, node.Components(s.runtime(), s.Bare)...) {
			hs.Processes = append(hs.Processes, process(h.Process(component)))
		}
		if _, err := proc.Read(lab.Path("run"), h.Process("kubelet")); err == nil {
			hs.Processes = append(hs.Processes, process(h.Process("kubelet")))
		}
		st.Hosts = append(st.Hosts, hs)
	}
	switch running {
	case all:
		st.State = "up"
	case 0:
		st.State = "down"
	default:
		st.State = "partial"
	}
	st.Cluster.UID = clusterUID(ctx, lab)
	return st, nil
}

// clusterUID returns the UID of namespace kube-system, which identifies a cluster.
func clusterUID(ctx context.Context, lab layout.Lab) string {
	keys, err := cluster.MakeKeys(lab)
	if err != nil {
		return ""
	}
	c, err := client(keys)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, lab.APIURL()+"/api/v1/namespaces/kube-system", nil)
	if err != nil {
		return ""
	}
	resp, err := c.Do(request)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var namespace struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&namespace); err != nil {
		return ""
	}
	return namespace.Metadata.UID
}

// WriteJSON writes the status for programs.
func (s *Status) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// WriteText writes the status for people.
func (s *Status) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	line := func(key, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", key, fmt.Sprintf(format, args...)) }
	line("lab", "%s (index %d): %s", s.Dir, s.Index, s.State)
	line("API server", "%s, cluster %s", s.Cluster.APIURL, s.Cluster.UID)
	line("admin", "%s", s.Cluster.AdminKubeconfig)
	line("client CA", "%s", s.Cluster.ClientCA)
	line("DNS", "%s for %s", s.Cluster.DNSIP, s.Cluster.Domain)
	line("pods, services", "%s, %s", s.Cluster.PodCIDR, s.Cluster.ServiceCIDR)
	line("images", "%s", strings.Join(s.Cluster.Images, " "))
	processes(line, s.Processes)
	for _, h := range s.Hosts {
		line("", "")
		line(h.Name, "%s, pods %s", h.IP, h.PodCIDR)
		line("  "+string(h.Runtime), "%s inside, %s outside", h.RuntimeSocket, h.OutsideSocket)
		line("  node kubeconfig", "%s", h.NodeKubeconfig)
		line("  serving", "%s %s", h.Serving.Cert, h.Serving.Key)
		line("  files", "%s", h.Root)
		line("  ssh", "ssh -i %s %s@%s", h.SSH.Key, h.SSH.User, strings.TrimSuffix(h.SSH.Address, ":22"))
		processes(line, h.Processes)
	}
	return t.Flush()
}

func processes(line func(string, string, ...any), list []ProcessStatus) {
	for _, p := range list {
		if p.State == "running" {
			line("  "+p.Name, "running, pid %d", p.PID)
			continue
		}
		if _, err := os.Stat(p.Log); err == nil {
			line("  "+p.Name, "%s, see %s", p.State, p.Log)
		} else {
			line("  "+p.Name, "%s", p.State)
		}
	}
}
