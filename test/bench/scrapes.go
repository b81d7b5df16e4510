package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// The settings of the scrapes over SSH.
const (
	// scrapeRest is longer than callers of a node share what was read of its host, and storageRest
	// longer than they share what was measured of its directories.
	scrapeRest  = 11 * time.Second
	storageRest = 62 * time.Second
	scrapeRuns  = 3 // of each page; the median counts
	// scrapeDelay is the delay of the link in each direction with which round trips are counted.
	scrapeDelay = 50 * time.Millisecond
)

// scrapePods are the numbers of pods on the node.
var scrapePods = []int{linkPods, 110}

// page is a page of a node that is scraped. The pages of a round are in the order of how much of the
// host each of them reads: the one after it cannot use what was read for it.
type page struct {
	path string
	name string
	// rest is the time before each scrape.
	rest time.Duration
}

const storagePage = "stats/summary"

var pages = []page{
	{path: "metrics", name: "/metrics, and /metrics/probes and /metrics/slis"},
	{path: "metrics/resource", name: "/metrics/resource", rest: scrapeRest},
	{path: storagePage, name: "/stats/summary"},
	{path: "metrics/cadvisor", name: "/metrics/cadvisor"},
}

// scraped is what a scrape of a page costs: the bytes on the link, both directions together, its time,
// and the bytes of the answer.
type scraped struct {
	link, answer float64
	took         time.Duration
}

// scrapeCost is the cost of a page with a number of pods.
type scrapeCost struct {
	scraped
	trips float64 // round trips on the link
}

// scrapeCosts has the cost of each page by its path; measured is that of the page with statistics of
// storage when the directories are measured for it.
type scrapeCosts struct {
	pods     int
	pages    map[string]scrapeCost
	measured scraped
}

// scrape gets a page of the node through the API server, and returns what it cost.
func scrape(ctx context.Context, client kubernetes.Interface, wire *labtest.Wire, path string) (s scraped, err error) {
	carried := func() float64 {
		forth, back := wire.Carried()
		return float64(forth + back)
	}
	from, began := carried(), time.Now()
	answer, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(theHost).SubResource("proxy").Suffix(path).DoRaw(ctx)
	if err != nil {
		return s, fmt.Errorf("scrape /%s: %w", path, err)
	}
	return scraped{link: carried() - from, answer: float64(len(answer)), took: time.Since(began)}, nil
}

// scrapeCosts measures the cost of each page of an idle node with pods, which the caller has made. It
// leaves the link without a delay.
func (b *bench) scrapeCosts(ctx context.Context, client kubernetes.Interface, wire *labtest.Wire, pods int) (scrapeCosts, error) {
	c := scrapeCosts{pods: pods, pages: map[string]scrapeCost{}}
	var measured []scraped
	for range scrapeRuns {
		s, err := scrape(ctx, client, wire, storagePage)
		if err != nil {
			return c, err
		}
		measured = append(measured, s)
		if err := pause(ctx, storageRest); err != nil {
			return c, err
		}
	}
	c.measured = middle(measured)
	quick, err := scrapeRounds(ctx, client, wire)
	if err != nil {
		return c, err
	}
	wire.Delay(scrapeDelay)
	defer wire.Delay(0)
	slow, err := scrapeRounds(ctx, client, wire)
	if err != nil {
		return c, err
	}
	for _, p := range pages {
		trips := (slow[p.path].took - quick[p.path].took).Seconds() / (2 * scrapeDelay).Seconds()
		c.pages[p.path] = scrapeCost{scraped: quick[p.path], trips: max(trips, 0)}
	}
	return c, nil
}

// scrapeRounds scrapes each page several times while nothing of it is shared with an earlier caller,
// but for the storage.
func scrapeRounds(ctx context.Context, client kubernetes.Interface, wire *labtest.Wire) (map[string]scraped, error) {
	if _, err := scrape(ctx, client, wire, storagePage); err != nil {
		return nil, err
	}
	all := map[string][]scraped{}
	for range scrapeRuns {
		for _, p := range pages {
			if err := pause(ctx, p.rest); err != nil {
				return nil, err
			}
			s, err := scrape(ctx, client, wire, p.path)
			if err != nil {
				return nil, err
			}
			all[p.path] = append(all[p.path], s)
		}
	}
	middles := map[string]scraped{}
	for path, each := range all {
		middles[path] = middle(each)
	}
	return middles, nil
}

// middle has the median of each number.
func middle(all []scraped) (m scraped) {
	of := func(read func(scraped) float64) float64 {
		var values []float64
		for _, s := range all {
			values = append(values, read(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	m.link = of(func(s scraped) float64 { return s.link })
	m.answer = of(func(s scraped) float64 { return s.answer })
	m.took = time.Duration(of(func(s scraped) float64 { return float64(s.took) }))
	return m
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// scrapeTable shows the cost of scrapes over SSH; nil if it was not measured.
func scrapeTable(all []scrapeCosts) [][]string {
	if len(all) == 0 {
		return nil
	}
	head := []string{"a scrape over SSH"}
	for _, c := range all {
		of := fmt.Sprintf(", %d pods", c.pods)
		head = append(head, "link"+of, "round trips"+of, "time"+of, "answer"+of)
	}
	kib := func(n float64) string { return fmt.Sprintf("%.1f KiB", n/(1<<10)) }
	line := func(name string, read func(scrapeCosts) (s scraped, trips string)) []string {
		cells := []string{name}
		for _, c := range all {
			s, trips := read(c)
			cells = append(cells, kib(s.link), trips, fmt.Sprintf("%d ms", s.took.Milliseconds()), kib(s.answer))
		}
		return cells
	}
	table := [][]string{head}
	for _, p := range pages {
		table = append(table, line(p.name, func(c scrapeCosts) (scraped, string) {
			return c.pages[p.path].scraped, fmt.Sprintf("%.1f", c.pages[p.path].trips)
		}))
	}
	return append(table, line("/"+storagePage+", once a minute, when it measures the directories",
		func(c scrapeCosts) (scraped, string) { return c.measured, "" }))
}

// scrapeNotes explains the table.
func scrapeNotes() string {
	var paths []string
	for _, p := range pages {
		paths = append(paths, "/"+p.path)
	}
	return fmt.Sprintf("- Scrapes over SSH: medians of %d scrapes of an idle node through the API server, in the order %s, each after a pause of %s. What a node has read of its host serves all callers of the next 10 s, and the sizes of directories those of the next minute. Round trips are the difference between the times with a delay of %s in each direction and without it, divided by %s.\n",
		scrapeRuns, strings.Join(paths, ", "), scrapeRest, scrapeDelay, 2*scrapeDelay)
}
