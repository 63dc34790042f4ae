package gobridge

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// storedEnvelopes are envelopes and the bytes of version 1; those must stay
// readable.
var storedEnvelopes = []struct {
	name   string
	e      Envelope
	stored string
}{
	{"empty", Envelope{}, "01000000000000000000ce8b8b28"},
	{"full", Envelope{
		ID: "id", IDOrigin: IDProducer, Subject: "subject", Topic: "a/b", Payload: []byte{0, 1, 255},
		Headers:     []Property{{"k", "1"}, {"", ""}, {"k", "2"}},
		ContentType: "text/plain", ResponseTopic: "re", CorrelationData: []byte{9, 8}, UTF8Payload: true, QoS: 2, Retain: true, Hops: 300,
		CreatedAt: time.Unix(1_700_000_000, 123_456_789), ExpiresAt: time.Unix(-5, 999_999_999),
	}, "01bfac0280c49fd50c959aef3a09ff93ebdc03026964077375626a65637403612f620a746578742f706c61696e02726503016b01310000016b0132020908030001ffd648a7e3"},
	{"empty correlation data", Envelope{ID: "x", CorrelationData: []byte{}, QoS: 1}, "01480001780000000000000079f2f2e0"},
}

func TestStoredEnvelopesStayReadable(t *testing.T) {
	t.Parallel()
	for _, tt := range storedEnvelopes {
		b, err := hex.DecodeString(tt.stored)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeEnvelope(b)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.e, got, cmpopts.EquateApproxTime(0)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if now := AppendEnvelope([]byte("before"), &tt.e); !bytes.Equal(now, append([]byte("before"), b...)) {
			t.Errorf("%s is written as\n%x, was\n%x", tt.name, now[6:], b)
		}
	}
}

func TestDamagedEnvelopesAreNoticed(t *testing.T) {
	t.Parallel()
	for _, tt := range storedEnvelopes {
		b := AppendEnvelope(nil, &tt.e)
		for i := range b {
			for _, bit := range []byte{1, 0x80} {
				b[i] ^= bit
				if _, err := DecodeEnvelope(b); !errors.Is(err, ErrDamaged) {
					t.Errorf("%s with byte %d changed: %v", tt.name, i, err)
				}
				b[i] ^= bit
			}
			if _, err := DecodeEnvelope(b[:i]); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s cut at %d: %v", tt.name, i, err)
			}
		}
	}
}

func TestANewerEnvelopeIsNoDamage(t *testing.T) {
	t.Parallel()
	b := AppendEnvelope(nil, &Envelope{ID: "x"})
	body := append([]byte{envelopeVersion + 1}, b[1:len(b)-4]...)
	if _, err := DecodeEnvelope(withChecksum(body)); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("a newer version: %v", err)
	}
}

func FuzzDecodeEnvelope(f *testing.F) {
	for _, tt := range storedEnvelopes {
		b := AppendEnvelope(nil, &tt.e)
		f.Add(b[:len(b)-4])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := DecodeEnvelope(withChecksum(body))
		if err != nil {
			return
		}
		again, err := DecodeEnvelope(AppendEnvelope(nil, &e))
		if diff := cmp.Diff(e, again); err != nil || diff != "" {
			t.Errorf("an envelope changed on its way (%v):\n%s", err, diff)
		}
	})
}

// withChecksum makes any bytes pass the checksum.
func withChecksum(body []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
}
