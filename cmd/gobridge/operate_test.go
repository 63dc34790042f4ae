package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/kinds"
	"github.com/gobridge/gobridge/metric"
	"github.com/gobridge/gobridge/store/memory"
)

const testKey = "S3cr3t-of-operations"

// TestOperatorCommands runs scripts beside a bridge that is played by the real admin
// API ($URL, key $KEY) on dead letters $ID1 to $ID3 and an outbox. In the scripts,
// stopped makes the stores of a stopped bridge (bridge.yaml) that hold dead letters
// $OLD1 and $OLD2 and three outbox records, and hold keeps them open.
func TestOperatorCommands(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                "testdata/operate",
		RequireUniqueNames: true,
		Setup:              setUpOperation,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":    code,
			"json":    isJSON,
			"lines":   countLines,
			"stopped": prepareStopped,
			"hold":    holdStores,
		},
	})
}

func setUpOperation(env *testscript.Env) error {
	p, err := newPlayed()
	if err != nil {
		return err
	}
	env.Defer(p.close)
	env.Setenv("URL", p.server.URL)
	env.Setenv("KEY", testKey)
	return setIDs(env, "ID", p.dlq)
}

// setIDs puts the ids of dead letters into variables.
func setIDs(env interface{ Setenv(name, value string) }, prefix string, q gobridge.DLQ) error {
	n := 0
	for d, err := range q.List(context.Background(), gobridge.DLQFilter{}) {
		if err != nil {
			return err
		}
		n++
		env.Setenv(fmt.Sprintf("%s%d", prefix, n), d.ID)
	}
	return nil
}

var buried = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// testLetters are two dead letters of the route up and one of down; the topic of the
// last one would move the cursor of a terminal.
func testLetters() []gobridge.DeadLetter {
	return []gobridge.DeadLetter{
		{
			Key: "1", RouteID: "up", BindingID: "up/0", SourceID: "up", Category: gobridge.CategoryPermanent, Code: gobridge.CodeForbidden,
			LastError: "publish: refused", Attempts: 1, FirstAt: buried, LastAt: buried, Address: "site/a",
			Envelope: gobridge.Envelope{
				ID: "m-1", IDOrigin: gobridge.IDProducer, Topic: "a", Payload: []byte(`{"n":1}`), QoS: 1, CreatedAt: buried,
				Headers: []gobridge.Property{{Name: "k", Value: "v"}, {Name: "k", Value: "w"}}, CorrelationData: []byte{0, 1},
			},
		},
		{
			Key: "2", RouteID: "up", BindingID: "up/0", SourceID: "up", Category: gobridge.CategoryPoison, Code: gobridge.CodePoisonMessage,
			Attempts: 5, FirstAt: buried, LastAt: buried.Add(time.Hour), Envelope: gobridge.Envelope{ID: "m-2", Topic: "b", Payload: []byte{0xff, 0xfe}},
		},
		{
			Key: "3", RouteID: "down", BindingID: "down/0", SourceID: "down", Category: gobridge.CategoryPoison, Code: gobridge.CodePoisonMessage,
			Attempts: 5, FirstAt: buried, LastAt: buried.Add(2 * time.Hour), Envelope: gobridge.Envelope{ID: "m-3", Topic: "c\x1b[2Jc", Payload: []byte("c\x1b[2Jc")},
		},
	}
}

// played plays a running bridge. Its destination refuses what is bound for down/0.
type played struct {
	dlq     *memory.DLQ
	outbox  *memory.Outbox
	file    *playedFile
	server  *httptest.Server
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	seeded []gobridge.SubscriptionState
}

func newPlayed() (*played, error) {
	p := &played{dlq: memory.NewDLQ(0), outbox: memory.NewOutboxStore(time.Hour).Open(), file: &playedFile{}}
	for _, d := range testLetters() {
		if _, err := p.dlq.Put(context.Background(), &d); err != nil {
			return nil, err
		}
	}
	if err := persist(p.outbox); err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	api := admin.NewAPI(p, []admin.Key{{Name: "ops", Key: gobridge.NewSecret(testKey)}}, log)
	p.server = httptest.NewServer(admin.NewHandler(p, api, metric.NewRegistry(), log))
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	p.running.Go(func() { api.Run(ctx) })
	return p, nil
}

func (p *played) close() {
	p.stop()
	p.running.Wait()
	p.server.Close()
	_ = p.outbox.Close()
	http.DefaultClient.CloseIdleConnections()
}

func (p *played) Live() error                                   { return nil }
func (p *played) Ready(gobridge.ServiceLevel) []gobridge.Reason { return nil }
func (p *played) Health() gobridge.BridgeHealth                 { return gobridge.BridgeHealth{} }
func (p *played) DLQ() gobridge.DLQ                             { return p.dlq }
func (p *played) Outbox() gobridge.Outbox                       { return p.outbox }
func (p *played) Stores() []gobridge.FileStore                  { return []gobridge.FileStore{p.file} }

func (p *played) Redrive(ctx context.Context, id string) error {
	d, err := p.dlq.Get(ctx, id)
	if err != nil {
		return err
	}
	if d.BindingID == "down/0" {
		return &gobridge.Error{Code: gobridge.CodeForbidden, Class: gobridge.ClassPermanent, Op: "publish to \x1b[2J", Hint: "allow it"}
	}
	_, err = p.dlq.Delete(ctx, id)
	return err
}

// The sessions of the played bridge: edge waits for a baseline until it is seeded, and
// moved keeps a filter that has left the config.

func (p *played) Topology() gobridge.Topology {
	return gobridge.Topology{
		Sessions:  []gobridge.TopologySession{{ID: "edge", SessionMode: gobridge.ModePersistent}, {ID: "moved", SessionMode: gobridge.ModePersistent}},
		Receivers: []gobridge.TopologyReceiver{{ID: "a", SessionID: "edge"}, {ID: "b", SessionID: "moved"}},
	}
}

func (p *played) Subscriptions(_ context.Context, id string) (gobridge.SessionSubscriptions, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch id {
	case "edge":
		return gobridge.SessionSubscriptions{SessionID: id, ClientID: "plant-7-edge", Known: p.seeded != nil, Filters: p.seeded}, nil
	case "moved":
		return gobridge.SessionSubscriptions{SessionID: id, ClientID: "plant-7-moved", Known: true, Filters: []gobridge.SubscriptionState{
			{Filter: "$share/g/a/#", Wanted: true, Granted: true}, {Filter: "b", Wanted: true}, {Filter: "c", Removed: true}, {Filter: "d"},
		}}, nil
	}
	return gobridge.SessionSubscriptions{}, fmt.Errorf("session %s: %w", id, gobridge.ErrNotFound)
}

func (p *played) SeedSubscriptions(_ context.Context, id string, discard bool, further ...string) error {
	if id != "edge" {
		return fmt.Errorf("session %s: %w", id, gobridge.ErrNotFound)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seeded = []gobridge.SubscriptionState{}
	if !discard {
		p.seeded = append(p.seeded, gobridge.SubscriptionState{Filter: "a/#", Wanted: true})
	}
	for _, f := range further {
		p.seeded = append(p.seeded, gobridge.SubscriptionState{Filter: f})
	}
	return nil
}

func (p *played) DrainSession(_ context.Context, id string) error { return p.work(id) }
func (p *played) EndSession(_ context.Context, id string) error   { return p.work(id) }
func (p *played) RetrySession(id string) error                    { return p.work(id) }

func (p *played) work(id string) error {
	switch id {
	case "edge", "moved":
		return nil
	}
	return fmt.Errorf("session %s: %w", id, gobridge.ErrNotFound)
}

// playedFile is a store that was salvaged and has a problem.
type playedFile struct {
	mu           sync.Mutex
	acknowledged bool
}

func (f *playedFile) Path() string { return filepath.Join(os.TempDir(), "gobridge.db") }

func (f *playedFile) Salvaged() *gobridge.Salvage {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.acknowledged {
		return nil
	}
	return &gobridge.Salvage{At: buried, Damaged: "gobridge.db.damaged", Cause: "page 7", Salvaged: 12, Lost: 1}
}

func (f *playedFile) Acknowledge(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acknowledged = true
	return nil
}

func (f *playedFile) Verify(context.Context) (*gobridge.Verification, error) {
	return &gobridge.Verification{Path: "/data/gobridge.db", Records: 3, DeadLetters: 2, Problems: []string{"record 7: checksum"}}, nil
}

func (f *playedFile) Backup(_ context.Context, path string) error {
	return os.WriteFile(path, []byte("the store\n"), 0o600)
}

// outcome hands what OutboxDone is told to a test.
type outcome chan error

func (o outcome) OutboxDone(_ []*gobridge.OutboxRecord, err error) { o <- err }

// persist puts three records of up/0 into an outbox.
func persist(o gobridge.Outbox) error {
	var records []*gobridge.OutboxRecord
	for i := range 3 {
		records = append(records, &gobridge.OutboxRecord{
			RouteID: "up", BindingID: "up/0", Address: "site/a",
			Envelope: gobridge.Envelope{ID: fmt.Sprintf("w-%d", i), Payload: []byte("waits")},
		})
	}
	done := make(outcome, 1)
	o.Persist(records, done)
	return <-done
}

// stoppedConfig is a bridge whose stores have their defaults.
const stoppedConfig = `bridge: { id: plant-7, data_dir: data }
sessions:
  - { id: edge, transport: mqtt, options: { session: { broker_url: "tcp://127.0.0.1:1883" } } }
  - { id: cloud, transport: mqtt, options: { session: { broker_url: "tcp://127.0.0.1:2883" } } }
routes:
  - id: up
    delivery_mode: shared_outbox
    receiver: { session_id: edge, topics: [ { topic: "a/#" } ] }
    bindings: [ { sender: { session_id: cloud }, address: "b/{topic}" } ]
`

// prepareStopped writes the config and fills its stores.
func prepareStopped(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: stopped")
	}
	dir := ts.Getenv("WORK")
	ts.Check(os.WriteFile(filepath.Join(dir, "bridge.yaml"), []byte(stoppedConfig), 0o600))
	ts.Check(os.Mkdir(filepath.Join(dir, "data"), 0o750))
	s, err := openTestStores(dir)
	ts.Check(err)
	for _, d := range testLetters()[:2] {
		_, e := s.dlq.Put(context.Background(), &d)
		err = errors.Join(err, e)
	}
	ts.Check(errors.Join(err, persist(s.outbox), setIDs(ts, "OLD", s.dlq), s.close()))
}

// openTestStores opens the stores of stoppedConfig in dir.
func openTestStores(dir string) (*stoppedBridge, error) {
	k := kinds.All()
	spec := &gobridge.Spec{
		Bridge: gobridge.BridgeSpec{ID: "plant-7", DataDir: filepath.Join(dir, "data")},
		Routes: []gobridge.RouteSpec{{ID: "up", DeliveryMode: gobridge.SharedOutbox}},
	}
	spec.Stores.DLQ.Type, spec.Stores.Outbox.Type = gobridge.StoreSQLite, gobridge.StoreSQLite
	s := &stoppedBridge{}
	env := gobridge.Env{Logger: slog.New(slog.DiscardHandler), Metrics: metric.NewRegistry()}
	if err := s.open(context.Background(), spec, k, need{dlq: true, outbox: true}, env); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// holdStores opens the stores of the stopped bridge for the rest of a script, as a
// running bridge does.
func holdStores(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: hold")
	}
	s, err := openTestStores(ts.Getenv("WORK"))
	ts.Check(err)
	ts.Defer(func() { _ = s.close() })
}
