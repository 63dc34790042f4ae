package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/bridgetest"
)

// refusing starts a mosquitto that takes nothing but topics below out/in/open, and a
// function that lets it take everything.
func refusing(t *testing.T) (dest *bridgetest.Mosquitto, permit func()) {
	t.Helper()
	acl := filepath.Join(t.TempDir(), "acl")
	set := func(text string) {
		t.Helper()
		if err := os.WriteFile(acl, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set("topic read #\ntopic write out/in/open/#\n")
	dest = bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Extra: []string{"acl_file " + acl}})
	return dest, func() {
		t.Helper()
		set("topic readwrite #\n")
		dest.Process().Signal(syscall.SIGHUP)
		c := client(t, dest.Addr())
		defer c.Close()
		if !within(patience, func() bool {
			ack, err := c.Publish(t.Context(), &packets.Publish{Topic: "probe", QoS: 1})
			return err == nil && ack.Reason < 0x80
		}) {
			t.Fatal("the broker still refuses everything")
		}
	}
}

// G18: what a destination refuses becomes a dead letter with all that is known of it,
// and arrives once, as it was, when it is redriven.
//
// Covers: S1-329, G18
func TestRefusedMessagesAreDeadLetteredAndRedriven(t *testing.T) {
	t.Parallel()
	const good = 200
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	dest, permit := refusing(t)
	cfg := viaOutbox(t, source.URL(), dest.URL())
	col := collect(t, dest.Addr(), "out/in/open")
	sub := subscriber(t, dest.Addr(), "out/in/secret/#")
	b := cfg.start(t)
	b.waitReady("")

	pub := publishN(t, source.Addr(), "in/open", good)
	began := time.Now()
	c := client(t, source.Addr())
	bad := map[string]*packets.Publish{}
	for _, id := range []string{"p-1", "p-2", "p-3"} {
		bad[id] = &packets.Publish{
			Topic: "in/secret/" + id, QoS: 1, Payload: []byte("value of \x00\xff " + id),
			Properties: &packets.Properties{
				ContentType: "application/x-reading", ResponseTopic: "answers/" + id, CorrelationData: []byte{0, 1, 0xfe, id[2]},
				User: []packets.User{{Key: "unit", Value: "°C"}, {Key: "mqtt.message-id", Value: id}, {Key: "unit", Value: "again"}},
			},
		}
		publish(t, c, bad[id])
	}
	r := finish(t, pub, col, good, b, time.Minute)
	exactlyOnce(t, r)
	b.waitDepth(0, patience)
	b.expectCounter(3, "dlq_entries", `binding_id="b"`, `category="permanent"`)
	b.settled()
	expectAcked(t, source, good+3)
	b.conservedSince(0)

	page := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url)
	if page.Depth != 3 || len(page.DeadLetters) != 3 {
		t.Fatalf("dlq list shows %d of %d dead letters, want 3", len(page.DeadLetters), page.Depth)
	}
	for _, listed := range page.DeadLetters {
		d := ask[admin.DeadLetter](t, "dlq", "show", listed.ID, "--url", b.url)
		want := bad[d.MessageID]
		if want == nil {
			t.Fatalf("dead letter of a message %q", d.MessageID)
		}
		if d.RouteID != "r" || d.BindingID != "b" || d.SourceID != "in" || d.Category != "permanent" || d.Code != "NOT_AUTHORIZED" ||
			!strings.Contains(d.LastError, "0x87") || d.Attempts != 1 || d.Replays != 0 || d.Topic != want.Topic || d.Address != "out/"+want.Topic {
			t.Errorf("evidence of %s: %+v", d.MessageID, d)
		}
		if d.FirstAt.Before(began) || d.LastAt.Before(d.FirstAt) || d.LastAt.After(time.Now()) {
			t.Errorf("%s first failed %v, last %v; published after %v", d.MessageID, d.FirstAt, d.LastAt, began)
		}
		m := d.Message
		got := &packets.Publish{
			Topic: d.Topic, QoS: m.QoS, Payload: m.Payload,
			Properties: &packets.Properties{ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData},
		}
		for _, h := range m.Headers {
			got.Properties.User = append(got.Properties.User, packets.User{Key: h.Name, Value: h.Value})
		}
		if diff := cmp.Diff(contentOf(want), contentOf(got)); diff != "" || m.IDOrigin != "producer" {
			t.Errorf("message of %s, id of the %s (-want +got):\n%s", d.MessageID, m.IDOrigin, diff)
		}
		if payload, _, _ := command(t, nil, "dlq", "show", listed.ID, "--payload", "--url", b.url); payload != string(want.Payload) {
			t.Errorf("dlq show --payload writes %q, want %q", payload, want.Payload)
		}
	}

	// Nothing has changed at the destination: the entries stay.
	if stdout, stderr, code := command(t, nil, "dlq", "redrive", "--all", "--url", b.url); code != 1 || !strings.Contains(stdout, "3 failed") {
		t.Errorf("redrive to a destination that refuses: exit code %d\n%s%s", code, stdout, stderr)
	}
	page = ask[admin.DLQPage](t, "dlq", "list", "--url", b.url)
	if page.Depth != 3 || page.DeadLetters[0].Replays != 1 {
		t.Errorf("after a redrive that failed: %+v", page)
	}

	permit()
	job := ask[admin.Job](t, "dlq", "redrive", "--all", "--url", b.url)
	if job.Total != 3 || job.Done != 3 || job.Failed != 0 {
		t.Errorf("redrive: %+v", job)
	}
	for range len(bad) {
		m := sub.MustReceive(t, patience)
		id, _ := m.UserProperty("mqtt.message-id")
		want := bad[id]
		if want == nil || m.Topic != "out/"+want.Topic {
			t.Errorf("got %q with id %q", m.Topic, id)
			continue
		}
		delete(bad, id)
		got := &packets.Publish{Topic: want.Topic, QoS: m.QoS, Payload: m.Payload, Properties: m.Properties}
		if diff := cmp.Diff(contentOf(want), contentOf(got)); diff != "" {
			t.Errorf("message %s arrived (-want +got):\n%s", id, diff)
		}
	}
	// Once: what comes next is the next message.
	publish(t, c, &packets.Publish{Topic: "in/secret/next", QoS: 1, Payload: []byte("next")})
	if m := sub.MustReceive(t, patience); m.Topic != "out/in/secret/next" {
		t.Errorf("got a message on %q again", m.Topic)
	}
	if page := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url); page.Depth != 0 || len(page.DeadLetters) != 0 {
		t.Errorf("after the redrive: %+v", page)
	}
	if n := b.metrics().sum("gobridge_dlq_depth"); n != 0 {
		t.Errorf("dlq_depth = %v, want 0", n)
	}
	b.waitDepth(0, patience)
	b.stop()
}

// content is what of a message goes from end to end.
type content struct {
	Topic, Payload, ContentType, ResponseTopic, Correlation string
	QoS                                                     byte
	User                                                    []packets.User
}

// contentOf leaves out the hop count, which each bridge raises.
func contentOf(p *packets.Publish) content {
	c := content{
		Topic: p.Topic, Payload: string(p.Payload), QoS: p.QoS,
		ContentType: p.Properties.ContentType, ResponseTopic: p.Properties.ResponseTopic, Correlation: string(p.Properties.CorrelationData),
	}
	for _, u := range p.Properties.User {
		if u.Key != "gobridge-hops" {
			c.User = append(c.User, u)
		}
	}
	return c
}

// G12: a record is poison when it has failed more than max_replay_attempts times and
// replay_budget has passed since the first time. The count is durable; messages
// behind it do not wait.
//
// Covers: S1-317, G12
func TestPoisonIsGivenUpAfterBothBounds(t *testing.T) {
	t.Parallel()
	const attempts, budget, good = 2, 1500 * time.Millisecond, 20
	for _, crash := range []bool{false, true} {
		t.Run(map[bool]string{false: "one process", true: "crash"}[crash], func(t *testing.T) {
			t.Parallel()
			source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			fake := bridgetest.NewFakeBroker(t)
			var tries atomic.Int32
			dest := fake.Auto(bridgetest.AutoConfig{PubAck: func(p *packets.Publish) (byte, bool) {
				if p.Topic == "out/in/poison" {
					tries.Add(1)
					return packets.PubackUnspecifiedError, false
				}
				return 0, false
			}})
			cfg := viaOutbox(t, source.URL(), fake.URL())
			cfg.policy["max_replay_attempts"], cfg.policy["replay_budget"] = attempts, budget.String()
			cfg.policy["backoff"] = doc{"initial_interval": "100ms", "max_interval": "200ms"}
			b := cfg.start(t)
			b.waitReady("")
			began := time.Now()
			publish(t, client(t, source.Addr()), &packets.Publish{Topic: "in/poison", QoS: 1, Payload: []byte("poison")})
			pub := publishN(t, source.Addr(), "in/good", good)
			pub.Wait(t, patience)
			dest.Wait(patience, func(s bridgetest.AutoStats) bool { return s.Received >= good })
			records := 0 // in the outbox when the last process began
			if crash {
				b.eventually(patience, "the failed sends are counted", func() bool {
					o := ask[admin.OutboxStatus](t, "outbox", "list", "--url", b.url)
					return len(o.Records) == 1 && o.Records[0].ReplayCount >= attempts
				})
				b.settled() // the good ones are not to come again
				b.Kill9()
				records = 1
				b = cfg.start(t)
			}
			b.expectCounter(1, "dlq_entries", `category="poison"`)
			took := time.Since(began)
			letter := ask[admin.DLQPage](t, "dlq", "list", "--url", b.url).DeadLetters[0]
			t.Logf("%d tries in %v; %s", tries.Load(), took.Round(time.Millisecond), letter.LastError)
			if n := tries.Load(); n <= attempts || took < budget {
				t.Errorf("given up after %d tries and %v, want more than %d and at least %v", n, took, attempts, budget)
			}
			if letter.Code != "POISON_MESSAGE" || letter.Topic != "in/poison" {
				t.Errorf("dead letter %+v", letter)
			}
			b.waitDepth(0, patience)
			b.expect(counts{"messages_sent": float64(good * (1 - records)), "messages_dropped": 0, "dlq_entries": 1})
			b.conservedSince(records)
			b.stop()
		})
	}
}
