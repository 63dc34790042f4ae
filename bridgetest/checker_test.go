package bridgetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestReportFindsPlantedFaults(t *testing.T) {
	ledger := Ledger{Sent: 6, Acked: 6}
	tests := []struct {
		name     string
		ledger   Ledger
		payloads []string
		want     Report
	}{
		{"nothing wrong", ledger, []string{"0", "1", "2", "3", "4", "5"}, Report{Received: 6}},
		{"a loss", ledger, []string{"0", "1", "3", "4", "5"}, Report{Received: 5, Lost: []int{2}}},
		{"everything lost", ledger, nil, Report{Lost: []int{0, 1, 2, 3, 4, 5}}},
		{"duplicates", ledger, []string{"0", "1", "1", "2", "3", "1", "4", "5"}, Report{Received: 6, Duplicates: 2, Unexplained: 2}},
		{
			"a duplicate that the publisher caused",
			Ledger{Sent: 6, Acked: 6, Resent: []int{1}},
			[]string{"0", "1", "1", "2", "2", "3", "4", "5"},
			Report{Received: 6, Duplicates: 2, Unexplained: 1},
		},
		{"one late message", ledger, []string{"0", "2", "3", "1", "4", "5"}, Report{Received: 6, OutOfOrder: 1}},
		{"a block that came early", ledger, []string{"0", "4", "5", "1", "2", "3"}, Report{Received: 6, OutOfOrder: 3}},
		{"a late duplicate is not out of order", ledger, []string{"0", "1", "2", "0", "3", "4", "5"}, Report{Received: 6, Duplicates: 1, Unexplained: 1}},
		{
			"foreign payloads", ledger,
			[]string{"0", "x", "1", "2", "3", "4", "5", "-1", "99"},
			Report{Received: 6, Foreign: []string{"x", "-1", "99"}, ForeignCount: 3},
		},
		{
			"refused and open messages need not arrive",
			Ledger{Sent: 6, Acked: 4, Refused: map[int]byte{0: 0x97}, Open: []int{5}},
			[]string{"1", "2", "4"},
			Report{Received: 3, Lost: []int{3}},
		},
		{"padding", ledger, []string{"0 xx", "1 xx", "2", "3", "4", "5 "}, Report{Received: 6}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newArrivals()
			for _, p := range tt.payloads {
				a.add([]byte(p))
			}
			tt.want.Ledger = tt.ledger
			if diff := cmp.Diff(tt.want, a.report(tt.ledger), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReportNamesItsFigures(t *testing.T) {
	r := Report{Ledger: Ledger{Sent: 9, Acked: 9, Unrouted: 1}, Received: 8, Lost: []int{4}, SessionsLost: 2}
	want := "sent 9, acked 9, resent 0, received 8, lost 1, duplicates 0 (unexplained 0), out of order 0; first lost [4], unrouted 1, collector sessions lost 2"
	if got := r.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestCheckerSeesABadBroker plants a loss, a duplicate and an inversion on the wire.
func TestCheckerSeesABadBroker(t *testing.T) {
	source, dest := NewFakeBroker(t), NewFakeBroker(t)
	source.Auto(AutoConfig{PubAck: func(p *packets.Publish) (byte, bool) {
		if string(p.Payload) == "7" {
			return packets.PubackQuotaExceeded, false
		}
		return 0, false
	}})
	order := []string{"0", "1", "3", "2", "4", "4", "6"} // 5 is lost, 7 was refused
	dest.Auto(AutoConfig{Source: &SourceConfig{N: len(order), Topic: "t", QoS: 1, Payload: func(i int) []byte { return []byte(order[i]) }}})
	col := StartCollector(t, CollectorConfig{Addr: dest.Addr(), Filter: "t"})
	pub := StartPublisher(t, PublisherConfig{Addr: source.Addr(), Topic: "t", QoS: 1, N: 8})
	pub.Wait(t, 10*time.Second)
	if !col.WaitFor(6, 10*time.Second) || !col.WaitQuiet(50*time.Millisecond, 5*time.Second) {
		t.Fatalf("%d messages", col.Count())
	}
	got := col.Report(pub.Ledger())
	want := Report{
		Ledger:   Ledger{Sent: 8, Acked: 7, Refused: map[int]byte{7: 0x97}},
		Received: 6, Lost: []int{5}, Duplicates: 1, Unexplained: 1, OutOfOrder: 1,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestCollectorTriggersAtTheCount(t *testing.T) {
	fb := NewFakeBroker(t)
	fb.Auto(AutoConfig{Source: &SourceConfig{N: 10, Topic: "t", QoS: 1}})
	col := StartCollector(t, CollectorConfig{Addr: fb.Addr(), Filter: "t", ReceiveMaximum: 1})
	at := make(chan int, 2)
	col.OnCount(5, func() { at <- col.Count() })
	if !col.WaitFor(10, 5*time.Second) {
		t.Fatalf("%d messages", col.Count())
	}
	if got := <-at; got < 5 {
		t.Errorf("triggered at %d, want 5 or a little more", got)
	}
	late := make(chan int, 1)
	col.OnCount(3, func() { late <- 3 })
	<-late
	if col.WaitFor(11, 20*time.Millisecond) {
		t.Error("WaitFor saw a message that nobody sent")
	}
}

func TestPublisherPublishesAgainWhatALostSessionHeld(t *testing.T) {
	fb := NewFakeBroker(t)
	auto := fb.Auto(AutoConfig{
		Connack: func(_ *FakeConn, _ *packets.Connect, a *packets.Connack) { a.SessionPresent = false },
		PubAck:  func(p *packets.Publish) (byte, bool) { return 0, fb.Connections() == 1 && string(p.Payload) != "0" },
	})
	pub := StartPublisher(t, PublisherConfig{Addr: fb.Addr(), Topic: "t", QoS: 1, N: 30, Window: 10, MessageIDs: true, PayloadSize: 0})
	auto.Wait(5*time.Second, func(s AutoStats) bool { return s.Received == 11 })
	fb.CutAll()
	pub.Wait(t, 10*time.Second)
	var got []string
	for _, p := range auto.Received() {
		if p.Duplicate {
			t.Errorf("message %s came with DUP into a new session", p.Payload)
		}
		if id := p.Properties.User[0]; id.Key != "mqtt.message-id" || id.Value != "m-"+string(p.Payload) {
			t.Errorf("message %s has id %v", p.Payload, id)
		}
		got = append(got, string(p.Payload))
	}
	var want []string
	for i := range 11 {
		want = append(want, fmt.Sprint(i))
	}
	for i := range 29 {
		want = append(want, fmt.Sprint(i+1))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	l := pub.Ledger()
	if diff := cmp.Diff([]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, l.Resent); diff != "" || l.Acked != 30 {
		t.Errorf("acked %d, resent (-want +got):\n%s", l.Acked, diff)
	}
}

func TestAutoJudgesASourceBySink(t *testing.T) {
	source, dest := NewFakeBroker(t), NewFakeBroker(t)
	from := source.Auto(AutoConfig{Source: &SourceConfig{N: 5, Topic: "t", QoS: 1}})
	to := dest.Auto(AutoConfig{})
	out := MustConnect(t, ClientConfig{Addr: dest.Addr(), ClientID: "out", CleanStart: true})
	forward := func(m *Message) {
		if string(m.Payload) != "3" { // the planted loss
			_ = out.PublishAsync(t.Context(), &packets.Publish{Topic: m.Topic, QoS: 1, Payload: m.Payload}, nil)
		}
	}
	cfg := ClientConfig{Addr: source.Addr(), ClientID: "in", SessionExpiry: 60, ReceiveMaximum: 2, ManualAck: true, Session: NewSession()}
	in := MustConnect(t, cfg)
	subscribe(t, in, packets.SubOptions{Topic: "t", QoS: 1})
	forward(in.MustReceive(t, 5*time.Second))
	forward(in.MustReceive(t, 5*time.Second))
	in.Abort() // before any acknowledgement: 0 and 1 come again
	cfg.ManualAck, cfg.OnMessage = false, forward
	MustConnect(t, cfg)
	from.Wait(5*time.Second, func(s AutoStats) bool { return s.SourceAcked == 5 })
	to.Wait(5*time.Second, func(s AutoStats) bool { return s.Received == 6 })
	want := Report{Ledger: Ledger{Sent: 5, Acked: 5, Resent: []int{0, 1}}, Received: 4, Lost: []int{3}, Duplicates: 2}
	if diff := cmp.Diff(want, to.Report(from.Ledger()), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// TestCheckerSurvivesRestartsAndCuts runs publisher, broker and collector through
// everything they must survive; the broker loses nothing, so any loss would be the
// checker's own.
func TestCheckerSurvivesRestartsAndCuts(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprintf("QoS%d", qos), func(t *testing.T) {
			const n = 6000
			m := StartMosquitto(t, MosquittoConfig{})
			up, down := NewProxy(t, m.Addr()), NewProxy(t, m.Addr())
			col := StartCollector(t, CollectorConfig{Addr: down.Addr(), Filter: "t", QoS: qos, ReceiveMaximum: 100})
			col.OnCount(n/6, func() { up.Cut() })
			col.OnCount(2*n/6, func() { down.Cut() })
			col.OnCount(3*n/6, m.Restart)
			col.OnCount(4*n/6, func() { up.Cut(); down.Cut() })
			pub := StartPublisher(t, PublisherConfig{Addr: up.Addr(), Topic: "t", QoS: qos, N: n, Rate: 6000, PayloadSize: 64})
			pub.Wait(t, 60*time.Second)
			if !col.WaitFor(n, 30*time.Second) || !col.WaitQuiet(200*time.Millisecond, 10*time.Second) {
				t.Fatalf("received %d: %s", col.Count(), col.Report(pub.Ledger()))
			}
			r := col.Report(pub.Ledger())
			t.Log(r)
			if len(r.Lost) > 0 || r.Unexplained > 0 || r.OutOfOrder > 0 || r.ForeignCount > 0 || r.SessionsLost > 0 || r.Acked != n {
				t.Error("want nothing lost, unexplained, out of order or foreign")
			}
			if qos == 2 && r.Duplicates > 0 {
				t.Errorf("%d duplicates at QoS 2, want none", r.Duplicates)
			}
		})
	}
}

func TestCollectorReportsALostSession(t *testing.T) {
	fb := NewFakeBroker(t)
	fb.Auto(AutoConfig{Connack: func(_ *FakeConn, _ *packets.Connect, a *packets.Connack) { a.SessionPresent = false }})
	col := StartCollector(t, CollectorConfig{Addr: fb.Addr(), Filter: "t"})
	fb.CutAll()
	deadline := time.After(5 * time.Second)
	for col.Report(Ledger{}).SessionsLost == 0 {
		select {
		case <-deadline:
			t.Fatal("the collector did not notice")
		case <-time.After(time.Millisecond):
		}
	}
	var subscribes int
	for _, r := range fb.Records() {
		if r.Packet.Type == packets.SUBSCRIBE {
			subscribes++
		}
	}
	if subscribes != 2 {
		t.Errorf("%d SUBSCRIBEs, want 2", subscribes)
	}
}

func TestCollectorTellsItsOwnRedeliveriesFromDuplicates(t *testing.T) {
	fb := NewFakeBroker(t)
	auto := fb.Auto(AutoConfig{
		Source: &SourceConfig{N: 20, Topic: "t", QoS: 1, Payload: func(i int) []byte { return fmt.Append(nil, i%19) }},
	})
	// The acknowledgements of the first connection never arrive.
	proxy := NewProxy(t, fb.Addr())
	col := StartCollector(t, CollectorConfig{Addr: proxy.Addr(), Filter: "t", ReceiveMaximum: 10, OnMessage: func(*Message) {
		if fb.Connections() == 1 {
			proxy.BlackHoleOneWay(ToTarget, true)
		}
	}})
	if !col.WaitFor(10, 5*time.Second) {
		t.Fatalf("%d messages", col.Count())
	}
	proxy.Cut()
	proxy.BlackHoleOneWay(ToTarget, false)
	auto.Wait(10*time.Second, func(s AutoStats) bool { return s.SourceAcked == 20 })
	if !col.WaitQuiet(50*time.Millisecond, 5*time.Second) {
		t.Fatal("no end of messages")
	}
	r := col.Report(Ledger{Sent: 19, Acked: 19})
	if r.Redelivered != 10 || r.Duplicates != 1 || len(r.Lost) != 0 {
		t.Errorf("redelivered %d, duplicates %d, lost %v; want 10, 1, none", r.Redelivered, r.Duplicates, r.Lost)
	}
}
