package storm

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// The kinds of strikes.
const (
	strikeForce   = "forced away" // deleted without grace
	strikeDelete  = "deleted"
	strikeSignal  = "signalled by exec"     // an exec signals the container's first process
	strikeKill    = "killed"                // SIGKILL
	strikeExit    = "made to exit"          // the container ends itself
	strikeFail    = "made to fail liveness" // and its probe ends it
	strikeSandbox = "killed with its sandbox"
)

// strikesAPod limits the strikes against containers of one pod: back-off grows with each.
const strikesAPod = 3

// blow is a kind of strike and its relative frequency.
type blow struct {
	weight int
	strike func(*storm, context.Context) error
}

var blows = []blow{
	{34, func(s *storm, ctx context.Context) error { return s.deleteSome(ctx, 1) }},
	{3, func(s *storm, ctx context.Context) error { return s.deleteSome(ctx, 8) }},
	{3, (*storm).forceOne},
	{20, (*storm).signalOne},
	{14, (*storm).killOne},
	{12, (*storm).exitOne},
	{6, (*storm).failOne},
	{4, (*storm).killSandbox},
	{3, (*storm).changeConfigMap},
	{1, (*storm).rollOut},
}

// strikeOnce strikes once, by the seed.
func (s *storm) strikeOnce(ctx context.Context) error {
	all := 0
	for _, b := range blows {
		all += b.weight
	}
	n := s.rand.IntN(all)
	for _, b := range blows {
		if n -= b.weight; n < 0 {
			return b.strike(s, ctx)
		}
	}
	return nil
}

// note records a strike before it happens.
func (s *storm) note(kind, uid, id string) {
	s.strikes = append(s.strikes, strike{kind, uid, id, time.Now()})
	if id != "" {
		s.struck[uid]++
	}
}

// living returns pods that run and whose deletion was not requested, in the order of their names,
// so that the same seed makes the same choice as far as possible.
func (s *storm) living() []*v1.Pod {
	pods := slices.DeleteFunc(s.history.Now(), func(p *v1.Pod) bool {
		return p.DeletionTimestamp != nil || done(p) || p.Spec.NodeName == "" || s.asked[string(p.UID)]
	})
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return pods
}

func (s *storm) delete(ctx context.Context, p *v1.Pod, grace *int64) error {
	s.asked[string(p.UID)] = true
	err := s.lab.Client.CoreV1().Pods(s.namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone already
	}
	return err
}

func (s *storm) deleteSome(ctx context.Context, n int) error {
	for range n {
		pods := s.living()
		if len(pods) == 0 {
			return nil
		}
		p := pods[s.rand.IntN(len(pods))]
		var grace *int64
		if s.rand.IntN(4) == 0 {
			grace = ptr.To(int64(1))
		}
		s.note(strikeDelete, string(p.UID), "")
		if err := s.delete(ctx, p, grace); err != nil {
			return err
		}
	}
	return nil
}

// forceOne deletes a pod from the API server at once. It spares a StatefulSet's pods and those that
// come back with the same name: forcing those is documented to allow two at once.
func (s *storm) forceOne(ctx context.Context) error {
	pods := slices.DeleteFunc(s.living(), func(p *v1.Pod) bool {
		return len(p.OwnerReferences) == 0 || p.OwnerReferences[0].Kind != "ReplicaSet"
	})
	if len(pods) == 0 {
		return nil
	}
	p := pods[s.rand.IntN(len(pods))]
	s.note(strikeForce, string(p.UID), "")
	return s.delete(ctx, p, ptr.To(int64(0)))
}

// target picks an instance that may be struck, and its pod; nil if there is none.
func (s *storm) target(want func(p *v1.Pod, i *labtest.Instance) bool) (*v1.Pod, *labtest.Instance, error) {
	pods := map[string]*v1.Pod{}
	for _, p := range s.living() {
		if s.struck[string(p.UID)] < strikesAPod {
			pods[string(p.UID)] = p
		}
	}
	all, err := s.tasks.Instances()
	if err != nil {
		return nil, nil, err
	}
	list := slices.DeleteFunc(all, func(i labtest.Instance) bool {
		p := pods[i.UID]
		return p == nil || !i.Runs() || time.Since(i.Started) < 3*time.Second || i.Container == "init" || !want(p, &i)
	})
	if len(list) == 0 {
		return nil, nil, nil
	}
	slices.SortFunc(list, func(a, b labtest.Instance) int {
		return bytes.Compare([]byte(a.Pod+a.Container), []byte(b.Pod+b.Container))
	})
	i := list[s.rand.IntN(len(list))]
	return pods[i.UID], &i, nil
}

func isWeb(_ *v1.Pod, i *labtest.Instance) bool { return i.Container == "web" }

// signalOne kills a container's first process from inside, with an exec through the runtime.
// SIGKILL has no effect from there.
func (s *storm) signalOne(ctx context.Context) error {
	_, i, err := s.target(func(p *v1.Pod, i *labtest.Instance) bool { return !i.Sandbox && !isWeb(p, i) })
	if i == nil || err != nil {
		return err
	}
	signal := []string{"TERM", "INT", "HUP"}[s.rand.IntN(3)]
	s.note(strikeSignal, i.UID, i.ID)
	if _, err := s.runtime.ExecSync(ctx, i.ID, []string{"kill", "-" + signal, "1"}, 30*time.Second); err != nil {
		s.t.Logf("%s: %v", oracle.Describe(i), err) // the container ended, or its end interrupted the exec
	}
	return nil
}

func (s *storm) killOne(context.Context) error {
	_, i, err := s.target(func(_ *v1.Pod, i *labtest.Instance) bool { return !i.Sandbox })
	if i == nil || err != nil {
		return err
	}
	s.note(strikeKill, i.UID, i.ID)
	return kill(i)
}

// killSandbox kills the process that holds a pod's namespaces.
func (s *storm) killSandbox(context.Context) error {
	_, i, err := s.target(func(p *v1.Pod, i *labtest.Instance) bool {
		return i.Sandbox && p.Spec.RestartPolicy == v1.RestartPolicyAlways
	})
	if i == nil || err != nil {
		return err
	}
	s.note(strikeSandbox, i.UID, i.ID)
	return kill(i)
}

// kill sends SIGKILL to an instance's process, if the pid is still that process.
func kill(i *labtest.Instance) error {
	groups, err := os.ReadFile("/proc/" + strconv.Itoa(i.PID) + "/cgroup")
	if os.IsNotExist(err) || err == nil && !bytes.Contains(groups, []byte(i.ID)) {
		return nil // it has ended
	}
	if err != nil {
		return err
	}
	if err := syscall.Kill(i.PID, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return err
	}
	return nil
}

func (s *storm) exitOne(ctx context.Context) error {
	return s.askWeb(ctx, strikeExit, fmt.Sprintf("/exit?code=%d", s.rand.IntN(4)))
}

func (s *storm) failOne(ctx context.Context) error { return s.askWeb(ctx, strikeFail, "/fail") }

func (s *storm) askWeb(ctx context.Context, kind, path string) error {
	p, i, err := s.target(func(p *v1.Pod, i *labtest.Instance) bool {
		if !isWeb(p, i) || p.Status.PodIP == "" {
			return false
		}
		probe := p.Spec.Containers[0].LivenessProbe
		return kind != strikeFail || probe != nil && probe.HTTPGet != nil
	})
	if i == nil || err != nil {
		return err
	}
	s.note(kind, i.UID, i.ID)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Status.PodIP+":8080"+path, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err == nil {
		return answer.Body.Close()
	}
	return nil // it ended before it answered, or had ended
}

func (s *storm) changeConfigMap(ctx context.Context) error {
	_, err := s.lab.Client.CoreV1().ConfigMaps(s.namespace).Patch(ctx, configMap, types.MergePatchType,
		[]byte(fmt.Sprintf(`{"data":{"text":"%d"}}`, 15+s.rand.IntN(20))), metav1.PatchOptions{})
	return err
}

func (s *storm) rollOut(ctx context.Context) error {
	var names []string
	for _, w := range s.workloads {
		if w.kind == "Deployment" {
			names = append(names, w.name)
		}
	}
	_, err := s.lab.Client.AppsV1().Deployments(s.namespace).Patch(ctx, names[s.rand.IntN(len(names))], types.StrategicMergePatchType,
		[]byte(fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"storm/rolled":"%d"}}}}}`, s.rand.IntN(1<<30))), metav1.PatchOptions{})
	return err
}
