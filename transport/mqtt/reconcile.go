package mqtt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
)

const (
	// filtersPerSubscribe bounds one SUBSCRIBE packet.
	filtersPerSubscribe = 8
	// askedInVain is how often a filter is asked for, with growing waits, before the
	// waits are those of a permanent cause.
	askedInVain = 3
)

// subscription is one wanted filter and what the broker makes of it.
type subscription struct {
	filter string // as configured, $share/<group>/ included
	qos    byte
	shared bool

	granted    bool // as wanted, or lower where that is accepted; the broker remembers it with its session
	downgraded bool // the latest grant was lower than wanted
	grantedQoS byte
	why        string // what is wrong, for people
}

// forgetGrants takes note that the broker has no subscriptions of this session.
// Called with mu held. What a filter was granted stays known, so that the same
// downgrade is not a new one.
func (s *session) forgetGrants() {
	for i := range s.filters {
		s.filters[i].granted, s.filters[i].why = false, ""
	}
}

// reconcile makes the broker's subscriptions those that are wanted, on one
// connection, until they are or the connection ends.
//
// A resumed session in which this process had every filter granted needs nothing
// (V7). The first connect of a process subscribes in any case, because the broker's
// part may be from another config.
func (s *session) reconcile(ctx context.Context, cm *autopaho.ConnectionManager, ca *paho.Connack) {
	first := true
	for tries := 0; ; tries++ {
		err := s.subscribeMissing(ctx, cm, ca, first)
		if err == nil || ctx.Err() != nil {
			return
		}
		first = false
		wait := permanentWait
		if tries < askedInVain {
			wait = exponential(s.set.ReconnectDelay, s.set.ReconnectMaxDelay, tries)
		}
		wait = wait/2 + rand.N(wait/2+1)
		s.log.Warn("subscriptions are not as wanted", "err", err, "again_in", wait.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// subscribeMissing asks for the filters that are not granted. The error says what
// is still missing.
func (s *session) subscribeMissing(ctx context.Context, cm *autopaho.ConnectionManager, ca *paho.Connack, first bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.set.ReconcileTimeout)
	defer cancel()
	s.mu.Lock()
	var missing []int
	for i := range s.filters {
		if !s.filters[i].granted {
			missing = append(missing, i)
		}
	}
	asked := len(missing)
	s.subscribing = asked > 0
	s.mu.Unlock()
	var faults []error
	for len(missing) > 0 {
		n := min(filtersPerSubscribe, len(missing))
		if err := s.subscribe(ctx, cm, ca, missing[:n], first); err != nil {
			faults = append(faults, err)
		}
		missing = missing[n:]
	}
	s.mu.Lock()
	s.subscribing = false
	if len(faults) == 0 && s.linkCtx.Err() == nil {
		s.converged = true
		s.lastError = ""
	} else if len(faults) > 0 {
		s.lastError = errors.Join(faults...).Error()
	}
	s.mu.Unlock()
	if len(faults) == 0 && asked > 0 {
		s.log.Info("subscribed", "filters", asked)
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
		if f.why = unsupported(f, ca); f.why != "" {
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
		if err := s.takeGrant(i, answer.Reasons[k]); err != nil {
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
	o.NoLocal = s.set.NoLocal != nil && *s.set.NoLocal && !f.shared // [MQTT-3.8.3-4]
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
func (s *session) takeGrant(i int, code byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.filters[i]
	f.granted, f.why = false, ""
	switch {
	case code >= reasonFailure:
		f.why = (&reasonError{Reason: code}).Error()
	case code < f.qos:
		news := !f.downgraded || f.grantedQoS != code
		f.downgraded, f.grantedQoS = true, code
		f.granted = s.set.OnQoSDowngrade == DowngradeAccept
		if news {
			s.count.qosDowngraded.Inc()
			s.log.Warn("broker granted less than the wanted QoS", "filter", f.filter, "wanted", f.qos, "granted", code,
				"hint", "lower the topic's qos, lift the broker's cap, or set on_qos_downgrade: accept")
		}
		if !f.granted {
			f.why = fmt.Sprintf("broker granted QoS %d instead of %d", code, f.qos)
		}
	default:
		f.granted, f.downgraded = true, false
	}
	if f.granted {
		return nil
	}
	return fmt.Errorf("subscription %q: %s", f.filter, f.why)
}
