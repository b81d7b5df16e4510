package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// onlyAPI measures only the nodes' requests to the API server.
const onlyAPI = "api"

// apiSystems are the agents whose requests are counted.
var apiSystems = []string{sysBowline, sysSSH, sysKubelet}

// requests counts requests by HTTP method. The start of a watch is one GET.
type requests map[string]float64

func (r requests) total() (sum float64) {
	for _, n := range r {
		sum += n
	}
	return sum
}

// minus subtracts o, but never below zero.
func (r requests) minus(o requests) requests {
	d := requests{}
	for method, n := range r {
		if n -= o[method]; n > 0 {
			d[method] = n
		}
	}
	return d
}

func (r requests) times(f float64) requests {
	p := requests{}
	for method, n := range r {
		p[method] = n * f
	}
	return p
}

// String lists the methods in the order of their cost for the API server.
func (r requests) String() string {
	var parts []string
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "GET"} {
		if n := r[method]; n >= 0.005 {
			parts = append(parts, fmt.Sprintf("%s %.2f", method, n))
		}
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// apiCost counts the requests of one agent.
type apiCost struct {
	idle       requests // per second, with all pods running
	start, end requests // for one pod
}

// restRequests matches client-go's own counter, which the kubelet exposes as well.
var restRequests = regexp.MustCompile(`^rest_client_requests_total\{(.*)\} (\S+)$`)

// metrics returns the metrics of the agent's process.
func (r running) metrics(ctx context.Context) ([]byte, error) {
	if r.counts == "" {
		return r.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", theHost, "proxy/metrics").DoRaw(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.counts, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", r.counts, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// countRequests returns the number of requests that the agent has made so far, by method.
func countRequests(ctx context.Context, agent running) (requests, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	data, err := agent.metrics(ctx)
	if err != nil {
		return nil, fmt.Errorf("the metrics of %s: %w", theHost, err)
	}
	r := requests{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := restRequests.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, fmt.Errorf("the metrics of %s: %q: %w", theHost, lines.Text(), err)
		}
		for _, pair := range label.FindAllStringSubmatch(m[1], -1) {
			if pair[1] == "method" {
				r[pair[2]] += n
			}
		}
	}
	if len(r) == 0 {
		return nil, fmt.Errorf("%s does not count its requests", theHost)
	}
	return r, lines.Err()
}

// costOf counts one agent's requests on a fresh host: those while it is idle, and those that a wave
// adds.
func (b *bench) costOf(ctx context.Context, system string) (cost apiCost, err error) {
	agent, err := b.begin(ctx, system, b.bowline)
	if err != nil {
		return cost, err
	}
	defer func() { err = errors.Join(err, agent.stop()) }()
	client := agent.client
	if err := nodeReady(ctx, client); err != nil {
		return cost, err
	}
	w := wave{client: client, n: b.pods}
	if _, err := countRequests(ctx, agent); err != nil { // the first scrape costs one access review
		return cost, err
	}
	waitForIdle(ctx)
	// during returns the requests while f ran, and the time that f took.
	during := func(f func() error) (r requests, seconds float64, err error) {
		before, err := countRequests(ctx, agent)
		if err != nil {
			return nil, 0, err
		}
		began := time.Now()
		if err := f(); err != nil {
			return nil, 0, err
		}
		after, err := countRequests(ctx, agent)
		return after.minus(before), time.Since(began).Seconds(), err
	}
	waved := func(move func(context.Context) (time.Duration, error)) func() error {
		return func() error {
			_, err := move(ctx)
			waitForIdle(ctx)
			waitForIdle(ctx) // events wait for up to 5 s while pods start
			return err
		}
	}
	up, upTime, err := during(waved(w.up))
	if err != nil {
		return cost, err
	}
	idle, idleTime, err := during(func() error {
		select {
		case <-ctx.Done():
		case <-time.After(b.options.idle):
		}
		return ctx.Err()
	})
	if err != nil {
		return cost, err
	}
	down, downTime, err := during(waved(w.down))
	if err != nil {
		return cost, err
	}
	cost.idle = idle.times(1 / idleTime)
	cost.start = up.minus(cost.idle.times(upTime)).times(1 / float64(b.pods))
	cost.end = down.minus(cost.idle.times(downTime)).times(1 / float64(b.pods))
	return cost, nil
}

// api prints how many requests the agents make, and writes the table to a file if one is named.
func (b *bench) api(ctx context.Context) error {
	costs := map[string]apiCost{}
	for _, system := range apiSystems {
		cost, err := b.costOf(ctx, system)
		if err != nil {
			return fmt.Errorf("%s: %w", system, err)
		}
		costs[system] = cost
		fmt.Fprintf(os.Stderr, "%-8s idle %.3f/s (%v)  start %.2f (%v)  end %.2f (%v)  load %s\n", system,
			cost.idle.total(), cost.idle, cost.start.total(), cost.start, cost.end.total(), cost.end, labtest.Load())
	}
	table := [][]string{{"requests to the API server", "Bowline", "Bowline over SSH", "kubelet", "Bowline/kubelet", "aim"}}
	missed := false
	add := func(name, unit string, of func(apiCost) requests, checked bool) {
		line := []string{name}
		for _, system := range apiSystems {
			r := of(costs[system])
			line = append(line, fmt.Sprintf(unit+" (%v)", r.total(), r))
		}
		ours, theirs := of(costs[sysBowline]).total(), of(costs[sysKubelet]).total()
		worst := max(ours, of(costs[sysSSH]).total())
		verdict := ""
		if checked {
			verdict = "≤ kubelet: met"
			if worst > theirs {
				verdict, missed = "≤ kubelet: missed", true
			}
		}
		table = append(table, append(line, fmt.Sprintf("%.2f", ours/theirs), verdict))
	}
	add(fmt.Sprintf("an idle node with %d pods, a second", b.pods), "%.3f", func(c apiCost) requests { return c.idle }, true)
	add("a pod's start", "%.2f", func(c apiCost) requests { return c.start }, true)
	add("a pod's end", "%.2f", func(c apiCost) requests { return c.end }, false)
	var text bytes.Buffer
	labtest.Table(&text, table)
	fmt.Print(text.String())
	if b.out != "" {
		if err := os.WriteFile(b.out, b.apiDocument(text.Bytes()), 0o644); err != nil {
			return err
		}
	}
	if missed {
		return errors.New("more is asked of the API server than a kubelet asks")
	}
	return nil
}

func (b *bench) apiDocument(table []byte) []byte {
	return fmt.Appendf(nil, `# What a node costs the API server

Written by `+"`make bench-api`"+`; the last run was on %s.

%s
    BOWLINE_BENCH_IDLE=%s BOWLINE_BENCH_PODS=%d make bench-api

- Each agent manages a fresh lab host, and counts its own requests with client-go's `+"`rest_client_requests_total`"+`. The benchmark reads the counter before and after, from the /metrics of the kubelet and of Bowline's process. The start of a watch counts as one GET.
- %d pods are created at once, each with a service account token, and deleted at once. The requests of an idle node over the same time are subtracted.
- The kubelet is that of the lab's Kubernetes, with its defaults.
`, time.Now().UTC().Format("2006-01-02 15:04 MST"), table, b.options.idle, b.pods, b.pods)
}
