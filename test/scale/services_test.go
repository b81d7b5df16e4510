package main

import "testing"

func TestWatchesOfServices(t *testing.T) {
	const metrics = `# TYPE apiserver_longrunning_requests gauge
apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 9
apiserver_longrunning_requests{component="apiserver",group="",resource="services",scope="resource",subresource="proxy",verb="CONNECT",version="v1"} 7
apiserver_longrunning_requests{component="apiserver",group="",resource="services",scope="cluster",subresource="",verb="WATCH",version="v1"} 3
`
	if n, err := watchesOfServices([]byte(metrics)); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := watchesOfServices(nil); n != 0 || err != nil {
		t.Errorf("without one: %d, %v", n, err)
	}
}
