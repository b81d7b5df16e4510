package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// namespace of the measured pods.
const namespace = "bench"

const (
	pauseImage = "registry.lab/pause:lab"
	webImage   = "registry.lab/web:v1"
)

// waveLimit bounds one wave: beyond it something is broken, not slow.
const waveLimit = 5 * time.Minute

// newClient makes a client without a rate limit.
func newClient(kubeconfig string) (kubernetes.Interface, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	c.QPS = -1
	c.UserAgent = "bowline-bench"
	return kubernetes.NewForConfig(c)
}

// nodeReady waits until the node takes pods.
func nodeReady(ctx context.Context, c kubernetes.Interface) error {
	return labtest.Until(ctx, waveLimit, "node "+theHost+" is ready", func(ctx context.Context) error {
		n, err := c.CoreV1().Nodes().Get(ctx, theHost, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready := func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue }
		tainted := func(t v1.Taint) bool { return t.Key == v1.TaintNodeNotReady }
		if slices.ContainsFunc(n.Spec.Taints, tainted) || !slices.ContainsFunc(n.Status.Conditions, ready) {
			return errors.New("it is not")
		}
		return nil
	})
}

// probePeriod is the period of the readiness probe.
const probePeriod = 10 * time.Second

// podSpec returns pod i of a wave. The pod only waits, or it serves and has a readiness probe.
func podSpec(i int, probed bool) *v1.Pod {
	c := v1.Container{Name: "main", Image: pauseImage, ImagePullPolicy: v1.PullIfNotPresent}
	if probed {
		c.Image = webImage
		c.ReadinessProbe = &v1.Probe{
			ProbeHandler:  v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
			PeriodSeconds: int32(probePeriod.Seconds()),
		}
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("p%03d", i), Labels: map[string]string{"bench": "wave"}},
		// Bound from the start: the scheduler is not measured.
		Spec: v1.PodSpec{NodeName: theHost, Containers: []v1.Container{c}},
	}
}

// wave is a set of pods that are created together, watched, and deleted together.
type wave struct {
	client  kubernetes.Interface
	n       int
	probed  bool
	created func(*v1.Pod)      // called for each created pod; may be nil
	deleted func(string) error // called for each accepted deletion; may be nil
}

// up creates the pods and waits until all are Ready. The time runs from the first request to the
// event that shows the last pod Ready.
func (w wave) up(ctx context.Context) (time.Duration, error) {
	return w.run(ctx, "Ready", func(e watch.Event, p *v1.Pod) bool { return labtest.IsReady(p) }, func(ctx context.Context, i int) error {
		p, err := w.client.CoreV1().Pods(namespace).Create(ctx, podSpec(i, w.probed), metav1.CreateOptions{})
		if err == nil && w.created != nil {
			w.created(p)
		}
		return err
	})
}

// down deletes the pods and waits until all are gone.
func (w wave) down(ctx context.Context) (time.Duration, error) {
	return w.run(ctx, "gone", func(e watch.Event, p *v1.Pod) bool { return e.Type == watch.Deleted }, func(ctx context.Context, i int) error {
		name := podSpec(i, w.probed).Name
		err := w.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err == nil && w.deleted != nil {
			err = w.deleted(name)
		}
		return err
	})
}

// run makes a request for each pod and waits for the event of each that shows it done.
func (w wave) run(ctx context.Context, what string, done func(watch.Event, *v1.Pod) bool, request func(ctx context.Context, i int) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, waveLimit)
	defer cancel()
	seen, err := w.watch(ctx)
	if err != nil {
		return 0, err
	}
	defer seen.Stop()
	began := time.Now()
	failed := w.each(func(i int) error { return request(ctx, i) })
	pods := map[string]bool{}
	for len(pods) < w.n {
		select {
		case err := <-failed:
			return 0, fmt.Errorf("make pods %s: %w", what, err)
		case <-ctx.Done():
			return 0, fmt.Errorf("%d of %d pods are %s: %w", len(pods), w.n, what, ctx.Err())
		case e, open := <-seen.ResultChan():
			if !open {
				return 0, errors.New("the watch of pods ended")
			}
			if p, ok := e.Object.(*v1.Pod); ok && done(e, p) {
				pods[p.Name] = true
			}
		}
	}
	return time.Since(began), nil
}

// watch starts the watch. Call it before the wave begins.
func (w wave) watch(ctx context.Context) (watch.Interface, error) {
	list, err := w.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	return w.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
}

// each runs f for every pod, eight at a time, and sends errors to the channel.
func (w wave) each(f func(i int) error) <-chan error {
	failed := make(chan error, w.n)
	var mu sync.Mutex
	next := 0
	for range min(8, w.n) {
		go func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= w.n {
					return
				}
				if err := f(i); err != nil {
					failed <- err
				}
			}
		}()
	}
	return failed
}

// writes counts a node's write requests for its pods.
type writes struct{ patches, events, tokens int }

func (w writes) minus(o writes) writes {
	return writes{w.patches - o.patches, w.events - o.events, w.tokens - o.tokens}
}

func (w writes) per(n int) writes {
	near := func(x int) int { return (x + n/2) / n }
	return writes{near(w.patches), near(w.events), near(w.tokens)}
}

var requestTotal = regexp.MustCompile(`^apiserver_request_total\{(.*)\} (\S+)$`)
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// countWrites reads the API server's counters.
func countWrites(ctx context.Context, c kubernetes.Interface) (writes, error) {
	data, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return writes{}, fmt.Errorf("the API server's metrics: %w", err)
	}
	var w writes
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := requestTotal.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			continue
		}
		l := map[string]string{}
		for _, pair := range label.FindAllStringSubmatch(m[1], -1) {
			l[pair[1]] = pair[2]
		}
		switch {
		case l["resource"] == "pods" && l["subresource"] == "status" && l["verb"] == "PATCH":
			w.patches += int(n)
		case l["resource"] == "events" && (l["verb"] == "POST" || l["verb"] == "PATCH"):
			w.events += int(n)
		case l["resource"] == "serviceaccounts" && l["subresource"] == "token":
			w.tokens += int(n)
		}
	}
	return w, lines.Err()
}
