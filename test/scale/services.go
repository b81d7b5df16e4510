package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serviceNamespaces is the number of namespaces that hold the Services.
const serviceNamespaces = 20

// makersOfServices is how many goroutines create them.
const makersOfServices = 16

// makeServices makes the cluster's Services. They are in other namespaces than the pods, as are
// most Services of a large cluster: a pod gets variables for each Service of its own namespace.
func (c *rig) makeServices(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	core := c.fakes.Lab.Client.CoreV1()
	var namespaces []string
	for range min(serviceNamespaces, c.services) {
		ns, err := core.Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "scale-services-"}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		namespaces = append(namespaces, ns.Name)
	}
	numbers := make(chan int)
	var all sync.WaitGroup
	for range makersOfServices {
		all.Go(func() {
			for i := range numbers {
				namespace, name := namespaces[i%len(namespaces)], fmt.Sprintf("service-%d", i)
				if _, err := core.Services(namespace).Create(ctx, &v1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "Helm"}},
					Spec: v1.ServiceSpec{
						Selector: map[string]string{"app.kubernetes.io/name": name},
						Ports:    []v1.ServicePort{{Name: "http", Port: 80}, {Name: "metrics", Port: 9090}},
					},
				}, metav1.CreateOptions{}); err != nil {
					cancel(fmt.Errorf("make Service %s: %w", name, err))
				}
			}
		})
	}
	for i := range c.services {
		select {
		case numbers <- i:
		case <-ctx.Done():
		}
	}
	close(numbers)
	all.Wait()
	return context.Cause(ctx)
}

// serviceWatches is the number of the API server's open watches of all Services.
func (c *rig) serviceWatches(ctx context.Context) (int, error) {
	data, err := c.fakes.Lab.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return watchesOfServices(data)
}

// watchesOfServices reads that number from the metrics of an API server.
func watchesOfServices(metrics []byte) (int, error) {
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "apiserver_longrunning_requests{") || !strings.Contains(line, `group="",`) ||
			!strings.Contains(line, `resource="services",`) || !strings.Contains(line, `scope="cluster",`) || !strings.Contains(line, `verb="WATCH"`) {
			continue
		}
		n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		return int(n), err
	}
	return 0, lines.Err()
}
