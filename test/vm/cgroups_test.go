package vm

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// patience suits an emulated machine, where steps of seconds take minutes.
const patience = 10 * time.Minute

const image = "registry.lab/toolbox:lab"

// TestV2: cgroup version 2, which current distributions boot with.
func TestV2(t *testing.T) {
	machine := boot(t, 2)
	t.Run("suite", func(t *testing.T) { suite(t, machine) })
	t.Run("node", func(t *testing.T) {
		lab := cluster(t)
		for _, driver := range []string{"systemd", "cgroupfs"} {
			t.Run(driver, func(t *testing.T) { node(t, machine, lab, driver, 2) })
		}
		t.Run("nfs", func(t *testing.T) { nfs(t, machine, lab) })
		t.Run("devices", func(t *testing.T) { devices(t, machine, lab) })
	})
}

// TestV1: cgroup version 1, which systemd before 256 still supports.
func TestV1(t *testing.T) {
	machine := boot(t, 1)
	t.Run("suite", func(t *testing.T) { suite(t, machine) })
	t.Run("node", func(t *testing.T) {
		node(t, machine, cluster(t), "systemd", 1)
	})
}

// cluster is a lab; the machine becomes the node of its only host.
func cluster(t *testing.T) *labtest.Lab {
	lab := labtest.StartFor(t, filepath.Join(t.TempDir(), "lab"), 1, "--bare")
	// Only the test's pods may run, because the test checks the sum of their requests.
	testutil.Must(t, lab.Empty(t.Context()))
	return lab
}

// tree forms the names of one driver's cgroups.
type tree struct{ driver string }

func (d tree) path(parts ...string) string {
	if d.driver != "systemd" {
		return "/" + strings.Join(parts, "/")
	}
	path, name := "", ""
	for i, p := range parts {
		if i > 0 {
			name += "-"
		}
		name += strings.ReplaceAll(p, "-", "_")
		path += "/" + name + ".slice"
	}
	return path
}

// files are the paths of one version's files, by what they limit.
var files = map[int]map[string]string{
	1: {"share": "cpu/%s/cpu.shares", "quota": "cpu/%s/cpu.cfs_quota_us", "memory": "memory/%s/memory.limit_in_bytes",
		"pids": "pids/%s/pids.max", "huge": "hugetlb/%s/hugetlb.2MB.limit_in_bytes"},
	2: {"share": "%s/cpu.weight", "quota": "%s/cpu.max", "memory": "%s/memory.max", "pids": "%s/pids.max", "huge": "%s/hugetlb.2MB.max",
		"min": "%s/memory.min", "high": "%s/memory.high"},
}

// limits are the expected contents of files; files that are not named are not checked.
type limits map[string]string

// cgroups reads the files of cgroups in one round trip.
func (m *Machine) cgroups(ctx context.Context, version int, wanted map[string]limits) (map[string]limits, error) {
	var script strings.Builder
	for cgroup, l := range wanted {
		for what := range l {
			fmt.Fprintf(&script, "printf '%%s\\t%%s\\t%%s\\n' %s %s \"$(cat /sys/fs/cgroup/%s)\"\n", cgroup, what, fmt.Sprintf(files[version][what], cgroup))
		}
	}
	out, err := m.Run(ctx, script.String())
	if err != nil {
		return nil, err
	}
	got := map[string]limits{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 {
			continue
		}
		if got[f[0]] == nil {
			got[f[0]] = limits{}
		}
		got[f[0]][f[1]] = f[2]
	}
	return got, nil
}

// holds waits until the cgroups have these limits.
func (m *Machine) holds(t *testing.T, version int, wanted map[string]limits) {
	t.Helper()
	testutil.Must(t, labtest.Until(t.Context(), 2*time.Minute, "the cgroups have their limits", func(ctx context.Context) error {
		got, err := m.cgroups(ctx, version, wanted)
		if err != nil {
			return err
		}
		var differ []string
		for _, cgroup := range slices.Sorted(maps.Keys(wanted)) {
			for what, want := range wanted[cgroup] {
				if got[cgroup][what] != want {
					differ = append(differ, fmt.Sprintf("%s of %s is %q, not %q", what, cgroup, got[cgroup][what], want))
				}
			}
		}
		if len(differ) > 0 {
			return fmt.Errorf("%s", strings.Join(differ, "\n"))
		}
		return nil
	}))
}

// pods are the pods of the test: their resources, and the expected limits of their cgroups by
// version. systemd cannot represent a quota of 12.3 hundredths of a processor.
var pods = map[string]struct {
	class, resources string
	v1, v2           limits
}{
	"guaranteed": {"", "limits: {cpu: 200m, memory: 64Mi}",
		limits{"share": "204", "quota": "20000", "memory": "67108864", "pids": "300"},
		limits{"share": "8", "quota": "20000 100000", "memory": "67108864", "pids": "300", "huge": "0", "min": "0", "high": "max"}},
	"odd": {"", "limits: {cpu: 123m, memory: 32Mi}",
		limits{"share": "125", "quota": "12300", "memory": "33554432", "pids": "300"},
		limits{"share": "5", "quota": "12300 100000", "memory": "33554432", "pids": "300"}},
	"burstable": {"burstable", "requests: {cpu: 100m, memory: 16Mi}, limits: {memory: 32Mi}",
		limits{"share": "102", "quota": "-1", "memory": "33554432", "pids": "300"},
		limits{"share": "4", "quota": "max 100000", "memory": "33554432", "pids": "300", "huge": "0", "min": "0", "high": "max"}},
	"huge": {"burstable", "requests: {cpu: 10m}, limits: {hugepages-2Mi: 4Mi, memory: 16Mi}",
		limits{"share": "10", "huge": "4194304"},
		limits{"share": "1", "huge": "4194304", "memory": "16777216"}},
	"besteffort": {"besteffort", "",
		limits{"share": "2", "quota": "-1", "pids": "300"},
		limits{"share": "1", "quota": "max 100000", "memory": "max", "pids": "300", "huge": "0"}},
}

// node makes the machine a node of the lab and checks the limits of its cgroups.
func node(t *testing.T, machine *Machine, lab *labtest.Lab, driver string, version int) {
	d, began := manage(t, machine, lab, driver, "podPidsLimit: 300"), time.Now()
	ctx, name, bowline, until := t.Context(), d.name, d.bowline, d.until
	api := lab.Client.CoreV1().Pods("default")
	named := tree{driver}
	uids, containers := map[string]string{}, map[string]string{}
	wanted := map[string]limits{}
	running := func(ctx context.Context) error {
		list, err := api.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.Status.Phase != v1.PodRunning || len(p.Status.ContainerStatuses) == 0 || !p.Status.ContainerStatuses[0].Ready {
				return fmt.Errorf("%s", labtest.Describe(&p))
			}
			uids[p.Name] = string(p.UID)
			if was := containers[p.Name]; was != "" && was != p.Status.ContainerStatuses[0].ContainerID {
				t.Fatalf("the container of %s was made again", p.Name)
			}
			containers[p.Name] = p.Status.ContainerStatuses[0].ContainerID
		}
		return nil
	}
	for pod, p := range pods {
		d.create(t, fmt.Sprintf(`
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers: [{name: main, image: %s, command: [sleep, inf], resources: {%s}}]
`, pod, image, p.resources))
		until(t, pod+" runs", running) // one after another: the machine is slow
	}
	at := func(pod string) string {
		parts := []string{"kubepods"}
		if class := pods[pod].class; class != "" {
			parts = append(parts, class)
		}
		return named.path(append(parts, "pod"+uids[pod])...)
	}
	for pod, p := range pods {
		wanted[at(pod)] = maps.Clone(map[int]limits{1: p.v1, 2: p.v2}[version])
	}
	if driver == "systemd" {
		odd := wanted[at("odd")]
		odd["quota"] = strings.Replace(odd["quota"], "12300", "13000", 1)
	}
	n, err := lab.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	testutil.Must(t, err)
	memory := fmt.Sprint(n.Status.Capacity.Memory().Value())
	// Two processors; the burstable pods ask for 110 thousandths together.
	parents := map[int][3]string{1: {"2048", "112", "2"}, 2: {"79", "5", "1"}}[version]
	wanted[named.path("kubepods")] = limits{"share": parents[0], "memory": memory}
	wanted[named.path("kubepods", "burstable")] = limits{"share": parents[1]}
	wanted[named.path("kubepods", "besteffort")] = limits{"share": parents[2]}
	machine.holds(t, version, wanted)
	// systemd itself knows the cgroups: they still exist after it re-reads its files.
	if driver == "systemd" {
		_, err := machine.Run(ctx, "systemctl daemon-reload && systemctl is-active kubepods.slice kubepods-burstable.slice '"+filepath.Base(at("burstable"))+"'")
		testutil.Must(t, err)
		machine.holds(t, version, wanted)
	}

	// A resize.
	_, err = api.Patch(ctx, "guaranteed", types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"300m","memory":"96Mi"},"limits":{"cpu":"300m","memory":"96Mi"}}}]}}`), metav1.PatchOptions{}, "resize")
	testutil.Must(t, err)
	resized := wanted[at("guaranteed")]
	maps.Copy(resized, map[int]limits{1: {"share": "307", "quota": "30000", "memory": "100663296"}, 2: {"share": "12", "quota": "30000 100000", "memory": "100663296"}}[version])
	machine.holds(t, version, wanted)

	// A new Bowline process finds everything as it was.
	bowline.Kill()
	testutil.Must(t, bowline.Start())
	until(t, "the node is ready again, and its pods run", func(ctx context.Context) error {
		if err := d.ready(ctx); err != nil {
			return err
		}
		return running(ctx)
	})
	machine.holds(t, version, wanted)

	// A deleted pod leaves no cgroup, and without pods the class requests nothing.
	for _, pod := range []string{"burstable", "odd", "besteffort", "huge"} {
		testutil.Must(t, api.Delete(ctx, pod, metav1.DeleteOptions{}))
		delete(wanted, at(pod))
	}
	left := func(ctx context.Context, patterns ...string) error {
		var script strings.Builder
		for _, p := range patterns {
			fmt.Fprintf(&script, "find /sys/fs/cgroup /run/systemd/transient /run/systemd/system.control -name '%s' 2>/dev/null\nsystemctl list-units --all --no-legend '%[1]s'\n", p)
		}
		out, err := machine.Run(ctx, script.String()+"exit 0")
		if err == nil && out != "" {
			err = fmt.Errorf("there is %s", out)
		}
		return err
	}
	until(t, "nothing of the deleted pods is left", func(ctx context.Context) error {
		var patterns []string
		for _, pod := range []string{"burstable", "odd", "besteffort", "huge"} {
			patterns = append(patterns, filepath.Base(at(pod))+"*")
		}
		return left(ctx, patterns...)
	})
	wanted[named.path("kubepods", "burstable")] = limits{"share": parents[2]}
	machine.holds(t, version, wanted)

	// The machine runs out of memory: the kernel is asked to choose a victim, while the remaining
	// pod is a guaranteed one.
	_, err = machine.Run(ctx, `cp "$(command -v sleep)" /root/victim
		(echo 1000 >/proc/self/oom_score_adj && exec /root/victim 600) >/dev/null 2>&1 &
		until [ "$(cat /proc/$!/oom_score_adj)" = 1000 ]; do sleep 0.1; done
		echo f >/proc/sysrq-trigger
		wait $! || [ $? = 137 ] && rm /root/victim`)
	testutil.Must(t, err)
	until(t, "the node says that its machine had no memory left", func(ctx context.Context) error {
		list, err := lab.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "reason=SystemOOM,involvedObject.name=" + name})
		if err == nil && !slices.ContainsFunc(list.Items, func(e v1.Event) bool {
			return strings.HasPrefix(e.Message, "System OOM encountered, victim process: victim, pid: ") && e.LastTimestamp.Time.After(began)
		}) {
			err = fmt.Errorf("there are %d events", len(list.Items))
		}
		return err
	})

	// The machine is released with a pod on it.
	d.release(t)
	testutil.Must(t, left(ctx, "kubepods*"))
	// For the next driver: delete the pod's object, which has no node now.
	testutil.Must(t, api.Delete(ctx, "guaranteed", *metav1.NewDeleteOptions(0)))
}
