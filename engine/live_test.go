package engine

import (
	"strings"
	"testing"

	"github.com/gobridge/gobridge"
)

func TestLiveNamesAWedgedRoute(t *testing.T) {
	r := &route{id: "up"}
	e := &Engine{pipelines: []*pipeline{{spec: &gobridge.RouteSpec{ID: "up"}, routes: []*route{r}}}}
	if err := e.Live(); err != nil {
		t.Fatalf("idle route: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := e.Live(); err == nil || !strings.Contains(err.Error(), "route up is wedged") {
		t.Errorf("Live returned %v for a wedged route", err)
	}
}
