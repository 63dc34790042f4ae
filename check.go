package gobridge

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// The kinds of stores that the checks know by name.
const (
	// StoreMemory keeps everything in memory: it is gone when the process ends.
	StoreMemory = "memory"
	// StoreSQLite keeps everything in a file below bridge.data_dir.
	StoreSQLite = "sqlite"
	// StoreNone as stores.dlq.type says that there is no dead-letter queue.
	StoreNone = "none"
)

// notAvailable lists what the config has names for and this version does not
// offer, with what to do instead. Each is refused by its name. What a kind of
// Kinds brings is not looked up here.
var notAvailable = map[string]string{
	"processors":              "remove them from the route",
	"transport sqs":           "write transport: mqtt",
	"transport http":          "write transport: mqtt",
	"transport amqp":          "write transport: mqtt",
	"store type postgres":     "write type: sqlite",
	"store type dynamodb":     "write type: sqlite",
	"telemetry.otlp_endpoint": "remove it; metrics are served at /metrics",
}

// NotAvailable reports that this version does not offer something that the config
// has a name for; hint says what to do instead.
func NotAvailable(name string) (what, hint string, ok bool) {
	hint, ok = notAvailable[name]
	return name + " is not available in this version", hint, ok
}

// Check completes the spec in place and reports every fault of it. Receivers and
// senders written inline move to the lists, unset fields take their defaults, and
// each session's transport completes its options. A spec without a problem that is
// not a warning can be run. Check may be called again on what it completed. It
// never panics.
func (s *Spec) Check(kinds *Kinds) []Problem {
	if kinds == nil {
		kinds = new(Kinds)
	}
	c := &checker{spec: s, kinds: kinds}
	c.hoist()
	SetDefaults(s)
	c.deriveBridge()
	c.index()
	CheckTags(s, "", c.tagFault)
	c.checkBridge()
	c.checkStores()
	c.checkParts()
	c.checkRoutes()
	c.checkSessions()
	c.checkLeases()
	c.checkClientIDs()
	c.checkCycles()
	return c.problems
}

// checker holds the state of one Check.
type checker struct {
	spec     *Spec
	kinds    *Kinds
	problems []Problem

	// receiverPaths and senderPaths say where each entry of the lists is written.
	receiverPaths, senderPaths []string
	// The maps give the index of each id, the first where ids repeat.
	sessions, receivers, senders map[string]int
	// uses has one entry for each session; kind is nil for unknown transports.
	uses []use
	// senderUses gives the session of each sender, nil where it has none or its
	// options are not to be read.
	senderUses []*use
	// receiverRoute is the route that a receiver feeds, -1 for none.
	receiverRoute []int
	// bindings are those whose sender and address are in order.
	bindings []resolvedBinding
}

type use struct {
	SessionUse
	kind *Transport
	path string
	// receiverPath and senderPaths are where the parts of the use are written.
	receiverPath string
	senderPaths  []string
	// broken means that the options are not what the transport expects.
	broken bool
}

// resolvedBinding is a binding of a route with everything that it refers to.
type resolvedBinding struct {
	route, receiver, sender int
	template                *Template
}

func (c *checker) fault(path, what, hint string) {
	c.problems = append(c.problems, Problem{Path: path, What: what, Hint: hint})
}

func (c *checker) warn(path, what, hint string) {
	c.problems = append(c.problems, Problem{Path: path, What: what, Hint: hint, Warning: true})
}

// tagFault reports a fault at a path of the completed spec, where the user wrote it.
func (c *checker) tagFault(path, what, hint string) {
	path = written(path, "receivers", c.receiverPaths)
	path = written(path, "senders", c.senderPaths)
	c.fault(path, what, hint)
}

func written(path, list string, paths []string) string {
	rest, ok := strings.CutPrefix(path, list+"[")
	index, rest, closed := strings.Cut(rest, "]")
	if n, err := strconv.Atoi(index); ok && closed && err == nil && n < len(paths) {
		return paths[n] + rest
	}
	return path
}

// unavailable refuses by name what this version does not offer.
func (c *checker) unavailable(path, name string) bool {
	what, hint, ok := NotAvailable(name)
	if ok {
		c.fault(path, what, hint)
	}
	return ok
}

func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// hoist moves inline receivers and senders into the lists and derives the ids of
// bindings, receivers and senders.
func (c *checker) hoist() {
	s := c.spec
	for i := range s.Receivers {
		c.receiverPaths = append(c.receiverPaths, at("receivers", i))
	}
	for i := range s.Senders {
		c.senderPaths = append(c.senderPaths, at("senders", i))
	}
	for i := range s.Routes {
		r := &s.Routes[i]
		path := at("routes", i)
		id := r.ID
		if id == "" {
			id = path // the missing id is reported once, at the route
		}
		if r.Receiver != nil {
			if r.ReceiverID != "" {
				c.fault(path+".receiver_id", "the route has a receiver_id and a receiver written inline", "keep one of the two")
			}
			if r.Receiver.ID == "" {
				r.Receiver.ID = id
			}
			r.ReceiverID = r.Receiver.ID
			s.Receivers = append(s.Receivers, *r.Receiver)
			c.receiverPaths = append(c.receiverPaths, path+".receiver")
			r.Receiver = nil
		}
		for j := range r.Bindings {
			b := &r.Bindings[j]
			if b.ID == "" {
				b.ID = id + "/" + strconv.Itoa(j)
			}
			if b.Sender == nil {
				continue
			}
			path := path + "." + at("bindings", j)
			if b.SenderID != "" {
				c.fault(path+".sender_id", "the binding has a sender_id and a sender written inline", "keep one of the two")
			}
			if b.Sender.ID == "" {
				b.Sender.ID = b.ID
			}
			b.SenderID = b.Sender.ID
			s.Senders = append(s.Senders, *b.Sender)
			c.senderPaths = append(c.senderPaths, path+".sender")
			b.Sender = nil
		}
	}
}

// deriveBridge completes the identity of the bridge.
func (c *checker) deriveBridge() {
	b := &c.spec.Bridge
	if b.InstanceID != "" {
		return
	}
	host, err := os.Hostname()
	if err != nil {
		host = b.ID
	}
	b.InstanceID = host
}

// index builds the look-ups by id and reports ids that are missing or repeated.
func (c *checker) index() {
	s := c.spec
	c.sessions = indexIDs(c, "session", len(s.Sessions), func(i int) (string, string) { return s.Sessions[i].ID, at("sessions", i) })
	c.receivers = indexIDs(c, "receiver", len(s.Receivers), func(i int) (string, string) { return s.Receivers[i].ID, c.receiverPaths[i] })
	c.senders = indexIDs(c, "sender", len(s.Senders), func(i int) (string, string) { return s.Senders[i].ID, c.senderPaths[i] })
	indexIDs(c, "route", len(s.Routes), func(i int) (string, string) { return s.Routes[i].ID, at("routes", i) })

	var ids, paths []string
	for i := range s.Routes {
		for j := range s.Routes[i].Bindings {
			ids = append(ids, s.Routes[i].Bindings[j].ID)
			paths = append(paths, at("routes", i)+"."+at("bindings", j))
		}
	}
	indexIDs(c, "binding", len(ids), func(i int) (string, string) { return ids[i], paths[i] })
}

func indexIDs(c *checker, what string, n int, entry func(int) (id, path string)) map[string]int {
	index := make(map[string]int, n)
	for i := range n {
		id, path := entry(i)
		if id == "" {
			c.fault(path+".id", "the "+what+" has no id", "write id: and a name that no other "+what+" has")
			continue
		}
		if first, used := index[id]; used {
			_, other := entry(first)
			c.fault(path+".id", fmt.Sprintf("the id %q belongs to another %s, %s", id, what, other), "give each "+what+" an id of its own")
			continue
		}
		index[id] = i
	}
	return index
}

func (c *checker) checkBridge() {
	b := &c.spec.Bridge
	if strings.TrimSpace(b.ID) == "" {
		c.fault("bridge.id", "the bridge has no id", "write id: and a name that no other bridge has")
	}
	if b.DrainTimeout > b.ShutdownTimeout && b.ShutdownTimeout >= 0 {
		c.fault("bridge.drain_timeout", fmt.Sprintf("drain_timeout %v is longer than shutdown_timeout %v, of which it is a part", b.DrainTimeout, b.ShutdownTimeout),
			fmt.Sprintf("write at most %v, or a longer shutdown_timeout", b.ShutdownTimeout))
	}
}

func (c *checker) checkStores() {
	s := &c.spec.Stores
	c.checkStore("dlq", &s.DLQ, "dead letters", true)
	c.checkStore("replay_ledger", &s.ReplayLedger, "the counts of failed attempts", true)
	c.checkStore("outbox", &s.Outbox, "the messages of shared_outbox routes (G08)", c.spec.UsesOutbox())
	c.checkStore("managed_subscriptions", &s.ManagedSubscriptions, "the filters of durable sessions",
		c.spec.usesHistory() && len(c.kinds.Histories) > 0)
	if s.Lease.Type == "" && c.spec.usesLeases() && c.spec.Bridge.DeploymentMode != DeploymentClustered && s.Lease.Options == nil {
		s.Lease.Type = StoreMemory // one process: there is nothing to share (D6)
	}
	c.checkStore("lease", &s.Lease, "", c.spec.usesLeases() || s.Lease.Options != nil)
}

// usesHistory reports whether a session of the spec is durable and receives.
func (s *Spec) usesHistory() bool { return len(s.Receivers) > 0 }

// checkStore completes one store. Unset is the durable kind where there is one;
// what is kept in memory is announced (G08) where it matters; keeps names it.
func (c *checker) checkStore(role string, s *StoreSpec, keeps string, used bool) {
	path := "stores." + role
	kinds := map[string]func() any{}
	for _, k := range c.kinds.Stores(role) {
		kinds[k.Name] = k.Options
	}
	if role == "dlq" {
		kinds[StoreNone] = nil
	}
	if s.Type == "" {
		if !used {
			return
		}
		s.Type = c.kinds.DefaultStore(role)
	}
	options, known := kinds[s.Type]
	if !known {
		if !c.unavailable(path+".type", "store type "+s.Type) {
			hint := "write one of " + names(kinds)
			if len(kinds) == 0 {
				hint = "no kind of this store is built in"
			}
			c.fault(path+".type", fmt.Sprintf("there is no store type %q here", s.Type), hint)
		}
		return
	}
	if s.Type == StoreMemory && used && keeps != "" {
		hint := "write type: sqlite to keep them"
		if _, durable := kinds[StoreSQLite]; !durable {
			hint = "there is no durable store here"
		}
		c.warn(path, keeps+" are kept in memory and are lost when the process ends", hint)
	}
	if options != nil && c.options(path+".options", &s.Options, options) {
		c.checkOptions(path+".options", s.Options)
	}
}

func (c *checker) checkOptions(path string, options any) {
	setDefaults(reflect.ValueOf(options))
	CheckTags(options, path, c.fault)
}

// options makes sure that options have the type that their kind returns; unset
// ones become the kind's own.
func (c *checker) options(path string, options *any, kind func() any) bool {
	if kind == nil {
		return true
	}
	want := kind()
	v := reflect.ValueOf(*options)
	if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		*options = want
		return true
	}
	if v.Type() != reflect.TypeOf(want) {
		c.fault(path, fmt.Sprintf("the options are a %T", *options), fmt.Sprintf("use a %T", want))
		return false
	}
	return true
}

func names[V any](m map[string]V) string {
	var all []string
	for name := range m {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
