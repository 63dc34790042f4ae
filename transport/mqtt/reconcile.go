package mqtt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
)

const (
	// filtersPerRequest bounds one SUBSCRIBE or UNSUBSCRIBE packet.
	filtersPerRequest = 8
	// askedInVain is how often a filter is asked for, with growing waits, before the
	// waits are those of a permanent cause.
	askedInVain = 3
	// confirmAfter is how long a resumed session is taken at its word: a broker that was
	// killed may have come back with an older state of it, without the latest
	// subscriptions, or with those that were removed. Not at once, so that a reconnect
	// costs no round trip while there is a backlog to catch up with.
	confirmAfter = 10 * time.Second
	// downgradesForPermanent is how often in a row a filter may be granted at the same
	// lower QoS before that counts as the broker's rule.
	downgradesForPermanent = 3
)

// subscription is one wanted filter and what the broker makes of it.
type subscription struct {
	filter string // as configured, $share/<group>/ included
	qos    byte
	shared bool

	granted    bool   // as wanted, or lower where that is accepted; the broker remembers it with its session
	trusted    bool   // granted, but not by an answer on this connection (V7)
	downgraded bool   // the latest grant was lower than wanted
	why        string // what is wrong, for people
}

// forgetGrants takes note that the broker has no subscriptions of this session.
// Called with mu held.
func (s *session) forgetGrants() {
	for i := range s.filters {
		s.filters[i].granted, s.filters[i].why = false, ""
	}
}

// trustGrants takes over what a resumed session is taken to have (V7), apart from its
// shared subscriptions: mosquitto does not restore them when it restarts and says
// Session Present all the same, and asking for one again costs nothing, because it
// replays no retained messages (MQTT v5, 4.8.2). Called with mu held.
func (s *session) trustGrants() {
	for i := range s.filters {
		f := &s.filters[i]
		if f.shared {
			f.granted, f.why = false, ""
		}
		f.trusted = f.granted
	}
}

// reconcile makes the broker's subscriptions those that are wanted, on one
// connection, until they are or the connection ends.
//
// A resumed session in which every filter was granted, by this process or as the
// managed subscription history tells, needs nothing at first (V7), apart from its
// shared subscriptions; a while later it is asked to confirm. Without a history the
// first connect of a process subscribes in any case, because the broker's part may
// be from another config.
func (s *session) reconcile(c connection) {
	link, refusals := c.ctx, 0
	for tries := 0; ; tries++ {
		if s.gate.acquire(link) != nil {
			return
		}
		err := s.converge(link, c, tries == 0)
		s.gate.release()
		if link.Err() != nil {
			return
		}
		if err == nil {
			if !s.trusting() || !sleep(link, s.confirm) {
				return
			}
			tries, refusals = -1, 0
			s.mu.Lock()
			s.confirming = true
			s.mu.Unlock()
			continue
		}
		wait := exponential(s.set.ReconnectDelay, s.set.ReconnectMaxDelay, tries)
		if _, store := errors.AsType[*historyError](err); !store { // a store recovers by itself
			if refusals++; refusals > askedInVain {
				wait = permanentWait
			}
		}
		wait = wait/2 + rand.N(wait/2+1)
		s.log.Warn("subscriptions are not as wanted", "err", err, "again_in", wait.Round(time.Millisecond))
		if !sleep(link, wait) {
			return
		}
	}
}

// sleep waits, and reports false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// trusting reports whether the connection has grants that are taken on trust.
func (s *session) trusting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.filters, func(f subscription) bool { return f.trusted })
}

// converge tries once, while link lasts, which ends with the connection c. The error
// says what is not as wanted. Whoever calls it holds the session's gate.
func (s *session) converge(link context.Context, c connection, first bool) error {
	ctx, cancel := context.WithTimeout(link, s.set.ReconcileTimeout)
	defer cancel()
	refused, fault := s.adjust(ctx, c.cm, c.ca, first)
	err := errors.Join(refused, fault)
	s.mu.Lock()
	if len(s.filters) == 0 || slices.ContainsFunc(s.filters, func(f subscription) bool { return f.granted }) {
		s.carried.holds(holdingSession)
	}
	s.mu.Unlock()
	s.standStill(c.epoch, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribing = false
	if link.Err() != nil {
		return err // the end of the connection is what counts
	}
	s.unmanaged = ""
	s.carried.setCause("")
	if fault != nil {
		s.unmanaged = fault.Error()
	}
	if err != nil {
		s.lastError = err.Error()
		return err
	}
	s.converged = s.carried.wish() == wishRun
	s.lastError = ""
	return nil
}

// adjust asks for the filters that are not granted and removes those that are not
// wanted any more. refused is what is wrong with wanted filters, fault what is wrong
// besides.
//
// On a resumed session with filters to remove nothing is dispatched before they were
// removed, or the broker has refused something; what came meanwhile is judged then.
func (s *session) adjust(ctx context.Context, cm *autopaho.ConnectionManager, ca *paho.Connack, first bool) (refused, fault error) {
	if s.managed != nil {
		var goOn bool
		if goOn, fault = s.recall(ctx); !goOn {
			return nil, fault
		}
	}
	if s.carried.wish() == wishDrained {
		return nil, errors.Join(fault, s.in.letThrough())
	}
	var missing []int
	s.mu.Lock()
	confirming := s.confirming
	for i := range s.filters {
		if f := &s.filters[i]; !f.granted || f.trusted && confirming {
			missing = append(missing, i)
		}
	}
	s.mu.Unlock()
	if s.managed != nil {
		var err error
		if missing, err = s.rememberWanted(ctx, missing); fault == nil {
			fault = err
		}
	}
	if refused = s.subscribeMissing(ctx, cm, ca, missing, first); s.managed == nil {
		return refused, nil
	}
	if err := s.rememberGrants(ctx); fault == nil {
		fault = err
	}
	// Last, so that a topic under both an old and a new filter is always covered.
	if refused == nil && fault == nil {
		fault = s.removeStale(ctx, cm, confirming)
	}
	return refused, errors.Join(fault, s.in.letThrough())
}

// subscribeMissing asks for the given filters.
func (s *session) subscribeMissing(ctx context.Context, cm *autopaho.ConnectionManager, ca *paho.Connack, missing []int, first bool) error {
	if len(missing) == 0 {
		return nil
	}
	s.mu.Lock()
	s.subscribing = true
	s.mu.Unlock()
	var faults []error
	for which := range slices.Chunk(missing, filtersPerRequest) {
		if err := s.subscribe(ctx, cm, ca, which, first); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) == 0 {
		s.log.Info("subscribed", "filters", len(missing))
	}
	return errors.Join(faults...)
}

// subscribe sends one SUBSCRIBE and takes note of the answer to each filter.
func (s *session) subscribe(ctx context.Context, cm *autopaho.ConnectionManager, ca *paho.Connack, which []int, first bool) error {
	var asked []int
	var options []paho.SubscribeOptions
	var faults []error
	s.mu.Lock()
	for _, i := range which {
		f := &s.filters[i]
		if why := unsupported(f, ca); why != "" {
			f.why = why
			faults = append(faults, fmt.Errorf("subscription %q: %s", f.filter, f.why))
			continue
		}
		asked = append(asked, i)
		options = append(options, s.subscribeOptions(f, first))
	}
	s.mu.Unlock()
	if len(options) == 0 {
		return errors.Join(faults...)
	}
	answer, err := cm.Subscribe(ctx, &paho.Subscribe{Subscriptions: options})
	if answer == nil || len(answer.Reasons) != len(options) {
		if err == nil {
			err = fmt.Errorf("SUBACK answers %d of %d filters", len(answer.Reasons), len(options))
		}
		err = fmt.Errorf("SUBSCRIBE without an answer: %w", err)
		s.mu.Lock()
		for _, i := range asked {
			s.filters[i].why = err.Error()
		}
		s.mu.Unlock()
		return errors.Join(append(faults, err)...)
	}
	for k, i := range asked {
		if err := s.takeGrant(ctx, i, answer.Reasons[k]); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// subscribeOptions are those of MQTT v5, 3.8.3.1. Retain As Published is always
// set, so that the retain flag can be passed on (D8). An ephemeral session wants
// the retained messages with each fresh subscription; another one must not get
// them again with each reconnect.
func (s *session) subscribeOptions(f *subscription, first bool) paho.SubscribeOptions {
	o := paho.SubscribeOptions{Topic: f.filter, QoS: f.qos, RetainAsPublished: true, RetainHandling: 1}
	if !s.durable && first {
		o.RetainHandling = 0
	}
	o.NoLocal = s.set.noLocal(f)
	return o
}

// unsupported says why the broker cannot serve the filter, by its CONNACK.
func unsupported(f *subscription, ca *paho.Connack) string {
	switch {
	case ca.Properties == nil:
		return ""
	case f.shared && !ca.Properties.SharedSubAvailable:
		return "broker has no shared subscriptions"
	case strings.ContainsAny(f.filter, "#+") && !ca.Properties.WildcardSubAvailable:
		return "broker has no wildcard subscriptions"
	}
	return ""
}

// takeGrant takes note of the SUBACK code of a filter. The error says why it is
// not what was wanted.
func (s *session) takeGrant(ctx context.Context, i int, code byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil { // the next connection may have found the session gone
		return context.Cause(ctx)
	}
	f := &s.filters[i]
	f.granted, f.trusted, f.why = false, false, ""
	switch {
	case code >= reasonFailure:
		f.why = (&reasonError{Reason: code}).Error()
	case code < f.qos:
		f.downgraded = true
		f.granted = s.set.OnQoSDowngrade == DowngradeAccept
		times := s.carried.downgraded(f, code)
		if times == 1 {
			s.count.qosDowngraded.Inc()
			s.log.Warn("broker granted less than the wanted QoS", "filter", f.filter, "wanted", f.qos, "granted", code,
				"hint", "lower the topic's qos, lift the broker's cap, or set on_qos_downgrade: accept")
		}
		if f.granted {
			break
		}
		f.why = fmt.Sprintf("broker granted QoS %d instead of %d", code, f.qos)
		if times >= downgradesForPermanent {
			return downgradedForGood(f)
		}
	default:
		f.granted, f.downgraded = true, false
		s.carried.grantedInFull(f)
	}
	if f.granted {
		return nil
	}
	return fmt.Errorf("subscription %q: %s", f.filter, f.why)
}
