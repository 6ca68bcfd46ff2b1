"""What an XID means: severity and remedy by code, from NVIDIA's catalogue of immediate actions.

Codes 63 and 64 follow practice rather than the catalogue (a pending row remap wants a reset, a failed one a new board).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from scorer.model.board import Action


class Severity(Enum):
    """What an XID says about the hardware."""

    FATAL = "F"
    WARN = "W"
    UNCLEAR = "S"
    APPLICATION = "A"
    INFO = "I"


@dataclass(frozen=True, slots=True)
class Xid:
    """One row of the catalogue.

    Attributes:
        code: as in the kernel line.
        name: in a few words.
        severity: fatal to the GPU, a warning, unclear (the vendor says to ask support), the application's own fault,
            or mere information.
        action: the remedy, :attr:`Action.NONE` where the vendor names none that an operator can take.
    """

    code: int
    name: str
    severity: Severity
    action: Action


#: code|severity|action|name
_ROWS = """\
1|S|NONE|robust channel fifo error fifo method
2|S|NONE|robust channel fifo error sw method
3|S|NONE|robust channel fifo error unk method
4|S|NONE|robust channel fifo error channel busy
5|S|NONE|robust channel fifo error runout overflow
6|S|NONE|robust channel fifo error parse err
7|S|NONE|robust channel fifo error pte err
8|A|RESTART_APP|GPU stopped processing
9|S|NONE|robust channel gr error instance
10|S|NONE|robust channel gr error single step
11|A|RESTART_APP|Invalid or corrupted push buffer stream
12|S|NONE|robust channel gr error sw method
13|A|RESTART_APP|Graphics Engine Exception
14|A|NONE|robust channel fake error
15|S|NONE|robust channel scanline timeout
16|S|NONE|robust channel vblank callback timeout
17|S|NONE|robust channel parameter error
18|S|NONE|robust channel bus master timeout error
19|S|NONE|robust channel disp missed notifier
20|S|NONE|robust channel mpeg error sw method
21|S|NONE|robust channel me error sw method
22|S|NONE|robust channel vp error sw method
23|S|NONE|robust channel rc logging enabled
24|S|NONE|robust channel gr semaphore timeout
25|A|RESTART_APP|Invalid or illegal push buffer stream
26|S|NONE|robust channel fifo error fbistate timeout
27|S|NONE|robust channel vp error
28|S|NONE|robust channel vp2 error
29|S|NONE|robust channel bsp error
30|S|NONE|robust channel bad addr access
31|A|RESTART_APP|GPU memory page fault
32|A|RESTART_APP|Invalid or corrupted push buffer stream
33|S|NONE|robust channel sec error
34|S|NONE|robust channel msvld error
35|S|NONE|robust channel mspdec error
36|S|NONE|robust channel msppp error
37|I|NONE|Driver firmware error
38|I|NONE|Driver firmware error
39|A|RESTART_APP|Copy Engine Exception
40|A|RESTART_APP|Copy Engine Exception
41|A|RESTART_APP|Copy Engine Exception
42|S|NONE|robust channel vic error
43|I|NONE|GPU stopped processing
44|I|NONE|Graphics Engine fault during context switch
45|I|NONE|preemptive cleanup after an earlier XID
46|F|RESET_GPU|GPU stopped processing
47|S|NONE|robust channel nvenc0 error
48|F|RESET_GPU|Double Bit ECC Error
49|S|NONE|silent running constant level set by registry
50|S|NONE|silent running level transition due to rc error
51|S|NONE|silent running stress test failure
52|S|NONE|silent running level trans due to temp rise
53|S|NONE|silent running temp reduced clocking
54|F|CHECK_COOLING_POWER|Auxiliary power is not connected to the GPU board
55|S|NONE|silent running temperature read error
56|S|NONE|display channel exception
57|S|NONE|fb link training failure error
58|S|NONE|fb memory error
59|S|NONE|pmu error
60|A|RESTART_APP|Video processor exception
61|S|NONE|pmu breakpoint
62|F|RESET_GPU|micro-controller (PMU) halt
63|W|RESET_GPU|GPU memory remapping event
64|F|RMA|GPU memory remapping failure
65|S|NONE|robust channel nvenc1 error
66|I|NONE|Illegal access by driver
67|I|NONE|Illegal access by driver
68|A|RESTART_APP|NVDEC0 Exception
69|A|RESTART_APP|Graphics Engine class error
70|A|RESTART_APP|CE3: Unknown Error
71|A|RESTART_APP|CE4: Unknown Error
72|A|RESTART_APP|CE5: Unknown Error
73|S|NONE|robust channel nvenc2 error
74|F|RESET_GPU|NVLINK Error
75|A|RESTART_APP|CE6: Unknown Error
76|A|RESTART_APP|CE7: Unknown Error
77|A|RESTART_APP|CE8: Unknown Error
78|W|NONE|vGPU Start Error
79|F|REBOOT|GPU has fallen off the bus
80|A|RESTART_APP|Corrupted data sent to GPU
81|S|NONE|robust channel vga subsystem error
82|A|RESTART_APP|NVJPG0 Error
83|A|RESTART_APP|NVDEC1 Error
84|A|RESTART_APP|NVDEC2 Error
85|A|RESTART_APP|CE9: Unknown Error
86|A|RESTART_APP|OFA Exception
87|S|NONE|nvtelemetry driver report
88|A|RESTART_APP|NVDEC3 Error
89|A|RESTART_APP|NVDEC4 Error
90|S|NONE|ltc error
91|S|NONE|reserved xid
92|W|NONE|High single-bit ECC error rate
93|I|NONE|Non-fatal violation of provisioned InfoROM wear limit
94|A|RESTART_APP|Contained memory error
95|F|RESET_GPU|Uncontained memory error
96|A|RESTART_APP|NVDEC5 Error
97|A|RESTART_APP|NVDEC6 Error
98|A|RESTART_APP|NVDEC7 Error
99|A|RESTART_APP|NVJPG1 Error
100|A|RESTART_APP|NVJPG2 Error
101|A|RESTART_APP|NVJPG3 Error
102|A|RESTART_APP|NVJPG4 Error
103|A|RESTART_APP|NVJPG5 Error
104|A|RESTART_APP|NVJPG6 Error
105|A|RESTART_APP|NVJPG7 Error
106|I|NONE|SMBPBI Test Message
107|I|NONE|SMBPBI Test Message Silent
108|A|NONE|nvlink remote translation error
109|F|RESET_GPU|Context Switch Timeout Error
110|F|RESET_GPU|Security Fault Error
111|S|NONE|bundle error event
112|S|NONE|disp supervisor error
113|S|NONE|dp lt failure
114|S|NONE|head rg underflow
115|S|NONE|core channel regs
116|S|NONE|window channel regs
117|S|NONE|cursor channel regs
118|S|NONE|head regs
119|F|RESET_GPU|GSP RPC Timeout
120|F|RESET_GPU|GSP Error
121|I|NONE|C2C Error
122|S|NONE|spi pmu rpc read fail
123|S|NONE|spi pmu rpc write fail
124|S|NONE|spi pmu rpc erase fail
125|S|NONE|inforom fs error
126|A|RESTART_APP|CE10: Unknown Error
127|A|RESTART_APP|CE11: Unknown Error
128|A|RESTART_APP|CE12: Unknown Error
129|A|RESTART_APP|CE13: Unknown Error
130|A|RESTART_APP|CE14: Unknown Error
131|A|RESTART_APP|CE15: Unknown Error
132|A|RESTART_APP|CE16: Unknown Error
133|A|RESTART_APP|CE17: Unknown Error
134|A|RESTART_APP|CE18: Unknown Error
135|A|RESTART_APP|CE19: Unknown Error
136|F|RESET_GPU|Link Training Failed
137|I|NONE|NVLink Privilege Error
138|S|NONE|robust channel dla error
139|A|RESTART_APP|OFA1 Error
140|F|RESET_GPU|ECC Unrecovered Error
141|I|NONE|CUDA Fast Path Error
142|S|NONE|NVENC3 Error
143|F|RESET_GPU|GPU Initialization Error
144|F|RESET_GPU|NVLINK: SAW Error
145|F|RESET_GPU|NVLINK: RLW Error
146|F|RESET_GPU|NVLINK: TLW Error
147|F|RESET_GPU|NVLINK: TREX Error
148|F|RESET_GPU|nvlink: nvlpw ctrl error
149|F|RESET_GPU|NVLINK: NETIR Error
150|F|RESET_GPU|NVLINK: MSE Error
151|F|REBOOT|Key rotation Error
152|I|NONE|DLA SMMU Error
153|I|NONE|DLA timeout Error
154|I|NONE|GPU Recovery Action Changed
155|F|RESET_GPU|NVLINK: SW Defined Error
156|F|RESET_GPU|Resource Retirement Event
157|I|NONE|Resource Retirement Failure
158|F|RESET_GPU|GPU Fatal Timeout
159|W|NONE|CHI Non-Data Error
160|I|NONE|Channel Retirement Event
161|I|NONE|Channel Retirement Failure
162|I|NONE|Power Smoothing HW Circuitry capability reengaged
163|W|RESET_GPU|Power Smoothing HW Circuitry capability disengaged
164|S|NONE|Power Smoothing HW Circuitry low lifetime reached
165|S|NONE|Power Smoothing HW Circuitry lifetime exhausted
166|S|NONE|CC traffic seen prior to link properly being configured for encrypted traffic
167|F|REBOOT|pcie fatal timeout
168|S|NONE|Errors found in WPR (write protected region)
169|F|RESET_GPU|Internal micro-controller halt
170|S|NONE|Interrupt seen in CC mode
171|F|RESET_GPU|detail of a double-bit ECC error
172|F|RESET_GPU|detail of a double-bit ECC error
173|F|REBOOT|C2C Fatal Link Failure
"""


def _parse(row: str) -> Xid:
    code, severity, action, name = row.split("|")
    return Xid(int(code), name, Severity(severity), Action[action])


CATALOGUE: Mapping[int, Xid] = {x.code: x for x in map(_parse, _ROWS.splitlines())}

#: XIDs of the NVLink fabric of Blackwell: their text says whether this one is fatal.
NVLINK5 = frozenset(range(144, 151))

#: XIDs that another one causes, or that only announce a remedy. They never name a GPU as the cause.
FOLLOWERS = frozenset({45, 154})


def look_up(code: int) -> Xid:
    """Return the row of a code; a code that the catalogue does not know is unclear, never ignored."""
    return CATALOGUE.get(code) or Xid(code, "not in the catalogue", Severity.UNCLEAR, Action.NONE)
